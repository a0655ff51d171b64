// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/nl"
)

// asked returns the answer of the stack at address.
func asked(t *testing.T, address string) (nl.SysInfo, error) {
	t.Helper()
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		return nl.SysInfo{}, err
	}
	defer c.Close()
	return c.SysInfo(t.Context())
}

// free waits until no stack answers at address.
func free(t *testing.T, address string) {
	t.Helper()
	if err := netnstest.Until(testkind.Patience, func() error {
		if _, err := asked(t, address); !errors.Is(err, nl.ErrNoBackend) {
			return fmt.Errorf("%s still answers: %v", address, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestServeControl: an embedded stack answers at a path and at an abstract name, until
// its context ends.
func TestServeControl(t *testing.T) {
	testkind.System(t)
	client, server, _ := loopStacks(t, nil)
	for _, address := range []string{filepath.Join(t.TempDir(), "control"), fmt.Sprintf("@smcr-userstack-test-%d/servecontrol", os.Getpid())} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if err := client.ServeControl(ctx, address); err != nil {
			t.Fatal(err)
		}
		if info, err := asked(t, address); err != nil || info.LocalHost != "host0" || info.PID != uint32(os.Getpid()) {
			t.Errorf("%s: %+v, %v", address, info, err)
		}
		if err := server.ServeControl(ctx, address); !errors.Is(err, ErrControlTaken) {
			t.Errorf("%s is given twice: %v", address, err)
		}
		cancel()
		free(t, address)
		if err := server.ServeControl(t.Context(), address); err != nil {
			t.Fatalf("%s is not free: %v", address, err)
		}
		if info, err := asked(t, address); err != nil || info.LocalHost != "host1" {
			t.Errorf("%s: %+v, %v", address, info, err)
		}
	}
	slow, err := nl.DialUnix(t.Context(), fmt.Sprintf("@smcr-userstack-test-%d/servecontrol", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() // it has a connection while the stack is closed
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	free(t, fmt.Sprintf("@smcr-userstack-test-%d/servecontrol", os.Getpid()))
	if err := server.ServeControl(t.Context(), ""); !errors.Is(err, ErrStackClosed) {
		t.Errorf("a closed stack: %v", err)
	}
}

// TestServeControlStale: the socket file of a killed program is replaced. The socket of a
// running program, and other files, are not.
func TestServeControlStale(t *testing.T) {
	testkind.System(t)
	s, _, _ := loopStacks(t, nil)
	path := filepath.Join(t.TempDir(), "control")
	l, err := nl.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ServeControl(t.Context(), path); !errors.Is(err, ErrControlTaken) {
		t.Errorf("beside a living one: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := s.ServeControl(t.Context(), path); err != nil {
		t.Errorf("after a dead one: %v", err)
	}
	if _, err := asked(t, path); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.ServeControl(t.Context(), file); err == nil {
		t.Error("a file was replaced")
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestNamespaces: the stacks of one process each serve a network namespace. A stack uses
// its devices from any thread, and an SMC-R connection connects the two.
func TestNamespaces(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	stacks := map[*netnstest.Host]*Stack{}
	for _, h := range []*netnstest.Host{pair.A, pair.B} {
		if err := h.Do(func() error {
			s, err := New(Config{Hostname: h.Name})
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = s.Close() })
			stacks[h] = s
			if err := s.ServeControl(t.Context(), ""); err != nil {
				return err
			}
			if err := s.ServeControl(t.Context(), ""); !errors.Is(err, ErrControlTaken) {
				return fmt.Errorf("twice: %w", err)
			}
			c, err := nl.DialUser(t.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if info, err := c.SysInfo(t.Context()); err != nil || info.LocalHost != h.Name {
				return fmt.Errorf("%+v, %w", info, err)
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
	if err := stacks[pair.A].OptionError(); err != nil {
		t.Skip("the TCP option is not permitted here:", err)
	}
	var l net.Listener
	if err := pair.A.Do(func() (err error) {
		l, err = stacks[pair.A].Listen("tcp", net.JoinHostPort(pair.A.Addr(), "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	if err := pair.B.Do(func() (err error) {
		c, err = (&Dialer{Stack: stacks[pair.B], RequireSMC: true}).Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !IsSMC(c) || !IsSMC(s) {
		t.Fatalf("%T to %T", c, s)
	}
	b := &bed{t: t}
	b.exchange(c, s, pattern(1, 1<<20))
}
