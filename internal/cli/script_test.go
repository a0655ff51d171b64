// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/run"
	"smcr/internal/smctools/smcrd"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/nl"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// TestMain turns the test binary into the programs of the scripts.
func TestMain(m *testing.M) {
	run.MaybeChild()
	testscript.Main(m, map[string]func(){
		"smcr": func() {
			os.Exit(Program(context.Background(), cmdutil.NewFactory("1.2.3"), os.Args))
		},
		"swallow": swallow,
	})
}

// swallow is a server that reads everything until the end of the stream: swallow ADDRESS,
// or swallow ADDRESS smc for a socket of the kernel's SMC.
func swallow() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, swallowSMC(os.Args[1]))
		os.Exit(1)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		n, err := io.Copy(io.Discard, c)
		fmt.Printf("%d bytes, %v\n", n, err)
		_ = c.Close()
	}
}

// swallowSMC is swallow with AF_SMC, which package net does not support. It ends with its
// process.
func swallowSMC(address string) error {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_SMC, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 8); err != nil {
		return err
	}
	fmt.Println("ready")
	for b := make([]byte, 4096); ; {
		c, _, err := unix.Accept(fd)
		if err != nil {
			return err
		}
		for {
			if n, err := unix.Read(c, b); n <= 0 || err != nil {
				break
			}
		}
		_ = unix.Close(c)
	}
}

// TestScript runs testdata/script: the program with real stacks on two hosts. The
// commands a and b run their arguments on these hosts, $A and $B are the addresses. The
// command until repeats another command until it succeeds. hup sends SIGHUP to the stack
// of a host, and end ends this stack.
func TestScript(t *testing.T) {
	netnstest.Require(t, "nsenter")
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			pair, err := netnstest.Create(netnstest.Options{Links: 2})
			if err != nil {
				return err
			}
			env.Defer(func() {
				if err := pair.Close(); err != nil {
					t.Error(err)
				}
			})
			bin := filepath.Join(env.WorkDir, "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				return err
			}
			for name, h := range map[string]*netnstest.Host{"a": pair.A, "b": pair.B} {
				text := fmt.Sprintf("#!/bin/sh\nSMCR_HOST_ID=%[2]s exec nsenter --net=%[1]s -- \"$@\"\n", h.Path(), h.Name)
				if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
					return err
				}
			}
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("A", pair.A.Addr())
			env.Setenv("B", pair.B.Addr())
			// The kernel of the machine may have SMC too.
			env.Setenv(cmdutil.BackendEnv, "user")
			env.Setenv(smcrd.CacheEnv, filepath.Join(env.WorkDir, ".smcstats"))
			// Under the race detector, each program would wait a second at its end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"until": until, "hup": hup, "end": end},
		Condition: func(name string) (bool, error) {
			if name != "kernelsmc" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			c, err := nl.DialKernel(t.Context())
			if err == nil {
				err = c.Close()
				return true, err
			}
			return !errors.Is(err, nl.ErrNoBackend), nil
		},
	})
}

// until repeats a command until it succeeds.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until COMMAND [ARGUMENT...]")
	}
	err := netnstest.Until(testkind.Patience, func() error { return ts.Exec(args[0], args[1:]...) })
	ts.Check(err)
}

// hup sends SIGHUP to the stack of a host: hup HOST.
func hup(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hup HOST")
	}
	ts.Check(syscall.Kill(stackOf(ts, args[0]), syscall.SIGHUP))
}

// end ends the stack of a host in order and waits for it: end HOST.
func end(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: end HOST")
	}
	pid := stackOf(ts, args[0])
	ts.Check(syscall.Kill(pid, syscall.SIGTERM))
	ts.Check(netnstest.Until(testkind.Patience, func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("process %d is still there: %v", pid, err)
		}
		return nil
	}))
}

// stackOf returns the process of the stack of a host.
func stackOf(ts *testscript.TestScript, host string) int {
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(ts.Getenv("WORK"), "bin", host), "smcr", "info", "-o", "json")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), cmdutil.BackendEnv + "=user"}
	cmd.Stdout = &out
	ts.Check(cmd.Run())
	var info []struct{ PID int }
	ts.Check(json.NewDecoder(strings.NewReader(out.String())).Decode(&info))
	if len(info) != 1 || info[0].PID <= 1 {
		ts.Fatalf("no stack on %s: %s", host, out.String())
	}
	return info[0].PID
}
