// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/place"
	"smcr/internal/testing/testkind"
	"smcr/nl"

	"github.com/google/go-cmp/cmp"
)

type control struct {
	nl.Control
	name string
}

// TestOpenAuto checks which stack is asked if the command line names none.
func TestOpenAuto(t *testing.T) {
	none := cmdutil.Say(nl.ErrNoBackend, "none")
	foreign := fmt.Errorf("not yours: %w", os.ErrPermission)
	for _, test := range []struct {
		user, kernel error
		want         string
		err          error
	}{
		{nil, nil, "user", nil},
		{none, nil, "kernel", nil},
		{foreign, nil, "kernel", nil},
		{none, none, "", ErrNoModule},
		{syscall.EMFILE, nil, "", syscall.EMFILE},
	} {
		e := &Env{Factory: &cmdutil.Factory{Backend: "auto", Dial: func(_ context.Context, backend string) (nl.Multi, error) {
			if err := map[string]error{"user": test.user, "kernel": test.kernel}[backend]; err != nil {
				return nil, err
			}
			return nl.Multi{{Name: backend, Control: control{name: backend}}}, nil
		}}}
		ctl, err := e.Open(t.Context())
		got := ""
		if err == nil {
			got = ctl.(nl.Backend).Name
		}
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%v, %v: %q, %v", test.user, test.kernel, got, err)
		}
		if err == nil && e.Backend != test.want {
			t.Errorf("asked %q", e.Backend)
		}
	}
}

// TestOpenFailed checks that a socket without a listener is an error. It does not mean
// that the kernel has no SMC.
func TestOpenFailed(t *testing.T) {
	testkind.System(t)
	path := filepath.Join(t.TempDir(), "sock")
	streams, _, _, errOut := cmdutil.MemoryStreams()
	e := NewEnv(&cmdutil.Factory{IO: streams, Backend: "unix:" + path, Dial: cmdutil.Dial}, "/usr/bin/smcss")
	_, err := e.Open(t.Context())
	if status := e.OpenFailed(err, "Error"); status != cmdutil.ExitNoBackend || errOut.String() != "smcss: no smcr stack listens at "+path+"\n" {
		t.Errorf("%d, %q", status, errOut)
	}

	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e.Dial = func(context.Context, string) (nl.Multi, error) { return nil, cmdutil.Say(nl.ErrNoBackend, "no family") }
	errOut.Reset()
	_, err = e.Open(t.Context())
	if status := e.OpenFailed(err, "Error"); status != 1 || errOut.String() != "Error: SMC module not loaded\n" {
		t.Errorf("%d, %q", status, errOut)
	}
}

func TestTakeBackend(t *testing.T) {
	for _, test := range []struct {
		args, rest []string
		backend    string
	}{
		{[]string{"info"}, []string{"info"}, "auto"},
		{[]string{"--backend", "user", "info"}, []string{"info"}, "user"},
		{[]string{"--backend=unix:/x", "-d", "--backend", "y"}, []string{"-d", "--backend", "y"}, "unix:/x"},
		{[]string{"--backend"}, []string{"--backend"}, "auto"},
	} {
		e := &Env{Factory: &cmdutil.Factory{Backend: "auto"}}
		if diff := cmp.Diff(test.rest, e.TakeBackend(test.args)); diff != "" || e.Backend != test.backend {
			t.Errorf("%q: %s, backend %s", test.args, diff, e.Backend)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&nl.OpError{Op: "x", Err: syscall.EPERM}, "Operation not permitted"},
		{&nl.OpError{Op: "connect", Err: &place.UntrustedError{Path: "/run/smcr", Owner: 1000, Why: "is a link"}}, "/run/smcr is a link"},
		{&nl.OpError{Op: "x", Err: syscall.ENOENT}, "Object not found"},
		{&nl.OpError{Op: "x", Err: nl.ErrInterrupted}, "Dump inconsistency detected, interrupted"},
		{syscall.EIO, "Unspecific failure"},
		{ErrNoModule, "SMC module not loaded"},
		{&nl.OpError{Op: "x", Err: nl.ErrNoBackend}, "SMC module not loaded"},
		{errors.New("something else"), "something else"},
	} {
		if got := ErrorText(test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}

func TestNetDevName(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	e := &Env{}
	if got := e.NetDevName(uint32(lo.Index)); got != "lo" {
		t.Errorf("index of lo: %q", got)
	}
	if got := e.NetDevName(0) + e.NetDevName(1<<30); got != "" {
		t.Errorf("no device: %q", got)
	}
}
