// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// request and answer are those of program inject.
type request struct {
	Call  string `json:"call,omitempty"`
	Errno int    `json:"errno,omitempty"`
	At    int    `json:"at,omitempty"`
	Times int    `json:"times,omitempty"`
}

type answer struct {
	Counts map[string]int
	Failed int
	Error  string
}

// injected is a program that runs under inject.
type injected struct {
	*netnstest.Process
	control net.Conn
	in      *json.Decoder
}

// inject starts a program of a host whose calls can fail, at first with a fault. It has no
// fault if the request is empty. calls are the kinds of calls that inject sees.
func inject(t testing.TB, h *netnstest.Host, calls string, first request, argv ...string) *injected {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "control")
	defer ours.Close()
	i := &injected{}
	if i.control, err = net.FileConn(ours); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.control.Close() })
	i.in = json.NewDecoder(i.control)
	// The request is in the socket before the program exists, so it holds from the first
	// call on.
	if err := json.NewEncoder(i.control).Encode(first); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(context.Background(), bin("inject"), append([]string{calls}, argv...)...)
	cmd.ExtraFiles = []*os.File{theirs}
	i.Process = h.GoCmd(t, cmd)
	if a := i.answer(t); a.Error != "" {
		t.Fatal(a.Error)
	}
	return i
}

// set replaces the fault, and returns what happened since the last request.
func (i *injected) set(t testing.TB, r request) answer {
	t.Helper()
	if err := json.NewEncoder(i.control).Encode(r); err != nil {
		t.Fatalf("inject: %v\n%s", err, i.Log())
	}
	a := i.answer(t)
	if a.Error != "" {
		t.Fatal(a.Error)
	}
	return a
}

// last returns what happened since the last request, after the program has ended.
func (i *injected) last(t testing.TB) answer {
	t.Helper()
	if !ended(i.Process) {
		return i.set(t, request{})
	}
	return i.answer(t)
}

func (i *injected) answer(t testing.TB) (a answer) {
	t.Helper()
	if err := i.control.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		t.Fatal(err)
	}
	if err := i.in.Decode(&a); err != nil {
		t.Fatalf("inject: %v\n%s", err, i.Log())
	}
	return a
}

// program returns the process of the program itself, which is a child of inject.
func (i *injected) program() (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", i.Pid()))
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		// Not the first thread of inject has started it.
		tasks, terr := os.ReadDir(fmt.Sprintf("/proc/%d/task", i.Pid()))
		if terr != nil {
			return 0, terr
		}
		for _, task := range tasks {
			b, err = os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", i.Pid(), task.Name()))
			if err == nil && slices.ContainsFunc(b, func(c byte) bool { return c >= '0' && c <= '9' }) {
				_, err = fmt.Sscan(string(b), &pid)
				return pid, err
			}
		}
		return 0, fmt.Errorf("inject has no child: %w", err)
	}
	return pid, nil
}
