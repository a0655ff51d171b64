// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// An end that the service does not use ends the connection. The errno tells the launcher to make a
// reset of it, and the end is as it was.
func TestEndNotTaken(t *testing.T) {
	testkind.System(t)
	_, c, _ := declined(t, variousSettings[0])
	end := tcpSocket(t, 0)
	if err := c.Attach(end); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventClosed); !strings.Contains(ev.Text, "not a unix stream") || ev.Errno == 0 {
		t.Errorf("%+v", ev)
	}
	if broker.MarkedUnread(end) {
		t.Error("the end was changed")
	}
}

// takeUnix keeps nothing but the connection, and of an end that it cannot take
// the caller still has it.
func TestTakeUnix(t *testing.T) {
	testkind.System(t)
	checkLeaks(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	end := broker.NewDescriptor(fds[0])
	c, err := takeUnix(end)
	if err != nil {
		t.Fatal(err)
	}
	if err := end.Control(func(int) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the descriptor of an end that was taken: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n, err := unix.Read(fds[1], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the program reads %d, %v: somebody still has its end", n, err)
	}
	other := broker.NewDescriptor(tcpSocket(t, 0))
	if _, err := takeUnix(other); err == nil {
		t.Error("a TCP socket was taken")
	}
	if err := other.Control(func(int) error { return nil }); err != nil {
		t.Errorf("the descriptor of what was not taken: %v", err)
	}
	_ = other.Take() // tcpSocket closes it
}
