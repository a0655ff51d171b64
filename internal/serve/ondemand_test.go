// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/cmdutil"
	"smcr/internal/place"
	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/service"
)

// serveEnv makes the test binary smcr serve, which StartOnDemand runs.
const serveEnv = "SMCR_SERVE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(hangupEnv) != "" {
		awaitHangup()
	}
	if os.Getenv(serveEnv) != "" && len(os.Args) > 1 && os.Args[1] == "serve" {
		cmd := NewCmd(&cmdutil.Factory{IO: cmdutil.SystemStreams()})
		cmd.SetArgs(os.Args[2:])
		if err := cmd.ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(startEnv) != "" {
		if err := StartOnDemand(context.Background(), "--threads", "1"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// inNamespace runs f in a new network namespace, with the path of the log of its service.
func inNamespace(t *testing.T, f func(t *testing.T, log string)) {
	t.Helper()
	netnstest.Require(t)
	t.Setenv(serveEnv, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked, so that the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		log, err := logName(logDir)
		if err != nil {
			t.Error(err)
			return
		}
		defer os.Remove(log)
		dir, err := place.Dir()
		if err != nil {
			t.Error(err)
			return
		}
		defer os.RemoveAll(dir)
		f(t, log)
	}()
	<-done
}

// servicePID returns the process that listens for commands, or 0 if there is none.
func servicePID(t *testing.T) int {
	t.Helper()
	c, err := place.Dial(t.Context(), place.Commands)
	if err != nil {
		return 0
	}
	defer c.Close()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return 0
	}
	pid := 0
	if err := rc.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}); err != nil {
		t.Error(err)
	}
	return pid
}

// wantEnd waits until a process has ended. It kills one that does not.
func wantEnd(t *testing.T, pid int) {
	t.Helper()
	gone := false
	defer func() {
		if !gone {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}()
	testkind.Eventually(t, fmt.Sprintf("process %d ends", pid), func() (any, bool) {
		err := unix.Kill(pid, 0)
		gone = err == unix.ESRCH
		return err, gone
	})
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestStartOnDemand: a service that ends in order removes its log. After a failure, the
// log stays.
func TestStartOnDemand(t *testing.T) {
	start := func(t *testing.T, args ...string) (pid int) {
		t.Helper()
		if err := StartOnDemand(context.Background(), append([]string{"--threads", "1"}, args...)...); err != nil {
			t.Error(err)
			runtime.Goexit()
		}
		return servicePID(t)
	}
	end := func(t *testing.T, pid int, sig unix.Signal) {
		t.Helper()
		if pid <= 0 {
			t.Error("nobody listens after a start")
			runtime.Goexit()
		}
		if err := unix.Kill(pid, sig); err != nil {
			t.Error(err)
		}
		wantEnd(t, pid)
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			inNamespace(t, func(t *testing.T, log string) {
				pid := start(t)
				if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), fmt.Sprint("pid=", pid)) {
					t.Errorf("log of process %d: %q, %v", pid, b, err)
				}
				end(t, pid, sig)
				if exists(log) {
					t.Error("the log is left")
				}
				if d, ok := LastDied(); ok {
					t.Errorf("of a service that ended in order: %+v", d)
				}
			})
		})
	}
	t.Run("idle", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, log string) {
			pid := start(t, "--idle-timeout", "200ms") // it replaces the --idle-timeout of StartOnDemand
			wantEnd(t, pid)
			if exists(log) {
				t.Error("the log is left")
			}
		})
	})
	t.Run("by a service", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, log string) {
			// Where the service manager reads: the stack is not the service, and says nothing in its name.
			name := filepath.Join(t.TempDir(), "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
			if err != nil {
				t.Error(err)
				return
			}
			defer manager.Close()
			t.Setenv("NOTIFY_SOCKET", name)
			// What the program has inherited: it stays open until the last process has closed it.
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			kept, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD, 20)
			if err != nil {
				t.Error(err)
			}
			w.Close()
			t.Setenv("WATCHDOG_USEC", "100000")
			pid := start(t)
			if err := unix.Close(kept); err != nil {
				t.Error(err)
			}
			if err := r.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
				t.Error(err)
			}
			if n, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the stack has a descriptor of the program: %d, %v", n, err)
			}
			end(t, pid, unix.SIGTERM)
			// What the stack has sent is there already, since it has ended.
			if err := manager.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Error(err)
			}
			b := make([]byte, 1000)
			if n, err := manager.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%q, %v", b[:n], err)
			}
		})
	})
	t.Run("killed", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, log string) {
			// This process keeps the namespace alive for other services.
			holder := exec.Command("sleep", "60")
			if err := holder.Start(); err != nil {
				t.Error(err)
				return
			}
			defer holder.Wait() //nolint:errcheck // it was killed
			defer holder.Process.Kill()
			end(t, start(t), unix.SIGKILL)
			if b, err := os.ReadFile(log); err != nil || len(b) == 0 {
				t.Errorf("log: %q, %v", b, err)
			}
			if d, ok := LastDied(); !ok || d.Log != log || d.Last.IsZero() {
				t.Errorf("of a service that died: %+v, %v", d, ok)
			}
			// The sockets of the killed service remain, and clients take them for no
			// service.
			dir, err := place.Dir()
			if err != nil {
				t.Error(err)
			}
			for _, name := range []string{place.Commands, place.Commands} {
				if !exists(filepath.Join(dir, name)) {
					t.Errorf("a killed service has removed its socket %s", name)
				}
				if c, err := place.Dial(t.Context(), name); !errors.Is(err, place.ErrAbsent) {
					t.Errorf("a killed service at %s: %v, %v", name, c, err)
				}
			}
			before, err := os.ReadFile(log)
			if err != nil {
				t.Error(err)
			}
			// The next service has a new log, and the log of the killed one is kept.
			pid := start(t)
			kept := diedName(log)
			defer os.Remove(kept)
			if d, ok := LastDied(); !ok || d.Log != kept {
				t.Errorf("of a service that died before another one: %+v, %v", d, ok)
			}
			if b, err := os.ReadFile(kept); err != nil || string(b) != string(before) {
				t.Errorf("kept log: %q, %v; it was %q", b, err, before)
			}
			if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "serving") != 1 {
				t.Errorf("log: %q, %v", b, err)
			}
			end(t, pid, unix.SIGTERM)
			if !exists(kept) || exists(log) {
				t.Error("after an orderly end the log of the one that died is to be left, and no other")
			}
			// The log of a service that cannot start replaces no log that is kept.
			if err := StartOnDemand(context.Background(), "--netdev", "nonesuch0"); err == nil {
				t.Error("started on a netdev that does not exist")
			}
			end(t, start(t), unix.SIGTERM)
			if b, err := os.ReadFile(kept); err != nil || string(b) != string(before) {
				t.Errorf("kept log: %q, %v; it was %q", b, err, before)
			}
		})
	})
	t.Run("second", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, log string) {
			pid := start(t)
			err := StartOnDemand(context.Background())
			if !errors.Is(err, ErrStart) || !errors.Is(err, service.ErrRunning) {
				t.Errorf("a second one: %v", err)
			}
			if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "serving") {
				t.Errorf("log: %q, %v", b, err)
			}
			end(t, pid, unix.SIGTERM)
		})
	})
	t.Run("wrong flag", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, log string) {
			err := StartOnDemand(context.Background(), "--netdev", "nonesuch0")
			if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "nonesuch0") {
				t.Errorf("%v", err)
			}
			if pid := servicePID(t); pid != 0 {
				t.Errorf("process %d serves", pid)
			}
			if !exists(log) {
				t.Error("no log of a failure")
			}
		})
	})
	t.Run("canceled", func(t *testing.T) {
		inNamespace(t, func(t *testing.T, _ string) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := StartOnDemand(ctx); !errors.Is(err, ErrStart) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			testkind.Eventually(t, "no service is left", func() (any, bool) {
				pid := servicePID(t)
				return pid, pid == 0
			})
		})
	})
}

// TestStartSweeps: a service that starts removes the sockets of network namespaces that
// do not exist any more.
func TestStartSweeps(t *testing.T) {
	if !seesAll() {
		t.Skip("needs all processes of the machine in sight: the PID namespace is not the first")
	}
	inNamespace(t, func(t *testing.T, _ string) {
		own, err := place.Dir()
		if err != nil {
			t.Error(err)
			return
		}
		// No namespace has such a large cookie, and none has the inode number 1.
		dead := filepath.Join(filepath.Dir(own), fmt.Sprint(uint64(1<<63)+uint64(os.Getpid())))
		if err := os.MkdirAll(dead, 0o755); err != nil {
			t.Error(err)
			return
		}
		defer os.RemoveAll(dead)
		for name, text := range map[string]string{"lock": "1\n", place.Commands: ""} {
			if err := os.WriteFile(filepath.Join(dead, name), []byte(text), 0o600); err != nil {
				t.Error(err)
				return
			}
		}
		if err := StartOnDemand(t.Context(), "--threads", "1"); err != nil {
			t.Error(err)
			return
		}
		if exists(dead) || !exists(own) {
			t.Errorf("the directory of a dead namespace is there: %v, that of the service: %v", exists(dead), exists(own))
		}
		pid := servicePID(t)
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			t.Error(err)
		}
		wantEnd(t, pid)
	})
}

// TestReadyLine: the process that starts a service gets the cause of a failure as an
// error value. It does not derive the cause from the text.
func TestReadyLine(t *testing.T) {
	other := errors.New("no such netdev: " + service.ErrRunning.Error())
	for _, test := range []struct {
		err, is error
		text    string
	}{
		{nil, nil, ""},
		{fmt.Errorf("service: %w", service.ErrRunning), service.ErrRunning, service.ErrRunning.Error()},
		{fmt.Errorf("%w: %w", ErrPrivilege, os.ErrPermission), ErrPrivilege, ErrPrivilege.Error() + ": permission denied"},
		{other, nil, other.Error()},
		{errors.New("two\nlines"), nil, "two; lines"},
	} {
		got := parseReady(readyLine(test.err))
		if test.err == nil {
			if got != nil {
				t.Errorf("after a start: %v", got)
			}
			continue
		}
		if !errors.Is(got, ErrStart) || got.Error() != ErrStart.Error()+": "+test.text {
			t.Errorf("%v: %v", test.err, got)
		}
		for _, cause := range startCauses {
			if errors.Is(got, cause) != (test.is == cause) {
				t.Errorf("%v: is %v: %v", test.err, cause, errors.Is(got, cause))
			}
		}
	}
	if err := parseReady("panic: something"); !errors.Is(err, ErrStart) || err.Error() != ErrStart.Error()+": panic: something" {
		t.Errorf("%v", err)
	}
}
