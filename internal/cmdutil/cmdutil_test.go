// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"smcr/nl"
)

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{UsageError("x"), 2},
		{fmt.Errorf("x: %w", os.ErrInvalid), 2},
		{&nl.OpError{Err: syscall.EINVAL}, 2},
		{&nl.OpError{Err: syscall.ENODEV}, 3},
		{&nl.OpError{Err: syscall.ENOENT}, 3},
		{Say(os.ErrNotExist, "x"), 3},
		{&nl.OpError{Err: syscall.EPERM}, 4},
		{Say(&nl.OpError{Err: nl.ErrNoBackend}, "x"), 5},
		{&StatusError{Code: 137}, 137},
		{fmt.Errorf("x: %w", &StatusError{Code: 127, Err: os.ErrNotExist}), 127},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("%v: exit status %d, want %d", test.err, got, test.want)
		}
	}
}

func TestDefaultBackend(t *testing.T) {
	for env, want := range map[string]string{"": "auto", "kernel": "kernel"} {
		got := DefaultBackend(func(name string) string {
			if name != "SMCR_BACKEND" {
				t.Errorf("variable %s", name)
			}
			return env
		})
		if got != want {
			t.Errorf("%q: %q", env, got)
		}
	}
}

func TestDialErrors(t *testing.T) {
	for backend, want := range map[string]error{"moon": ErrUsage, "": ErrUsage, "unix:": ErrUsage, "unix:/no/such": nl.ErrNoBackend,
		"ending-99": nl.ErrNoBackend, "ending-0/../nl": nl.ErrNoBackend} {
		m, err := Dial(t.Context(), backend)
		if !errors.Is(err, want) || m != nil {
			t.Errorf("%q: %v, %v", backend, m, err)
		}
	}
}

func TestNetDev(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if got := NetDev(uint32(lo.Index)); got != "lo" {
		t.Errorf("index of lo: %q", got)
	}
	if NetDev(0) != "" || !strings.HasPrefix(NetDev(1<<30), "if") {
		t.Errorf("%q, %q", NetDev(0), NetDev(1<<30))
	}
}
