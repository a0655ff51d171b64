// SPDX-License-Identifier: Apache-2.0

package atonce

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestCalls: each call does what that of package unix does, and returns its error.
func TestCalls(t *testing.T) {
	testkind.System(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair[0], pair[1]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var buf [8]byte
	if _, err := Read(b, buf[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read without data: %v", err)
	}
	if _, err := Peek(b); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("peek without data: %v", err)
	}
	if got := Ready(b, unix.POLLIN); got != 0 {
		t.Errorf("ready without data: %#x", got)
	}
	n, err := Write(a, []byte("abc"))
	if must(err); n != 3 {
		t.Errorf("wrote %d bytes", n)
	}
	n, err = Peek(b)
	if must(err); n != 1 {
		t.Errorf("peek: %d", n)
	}
	if got := Ready(b, unix.POLLIN); got != unix.POLLIN {
		t.Errorf("ready with data: %#x", got)
	}
	n, err = Read(b, buf[:])
	if must(err); string(buf[:n]) != "abc" {
		t.Errorf("read %q", buf[:n])
	}
	must(Shutdown(a, unix.SHUT_WR))
	if n, err = Read(b, buf[:]); n != 0 || err != nil {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	must(SetInt(a, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1))
	v, err := GetInt(a, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	if must(err); v != 1 {
		t.Errorf("option: %d", v)
	}
	for _, on := range []bool{true, false} {
		must(SetLinger(a, on))
		l, err := unix.GetsockoptLinger(a, unix.SOL_SOCKET, unix.SO_LINGER)
		if must(err); l.Onoff != 0 != on || l.Linger != 0 {
			t.Errorf("linger %v: %+v", on, *l)
		}
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(err)
	defer unix.Close(set)
	must(Watch(set, unix.EPOLL_CTL_ADD, b, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: 7}))
	var events [2]unix.EpollEvent
	n, err = unix.EpollWait(set, events[:], 0)
	if must(err); n != 1 || events[0].Fd != 7 {
		t.Errorf("%d events: %+v", n, events)
	}
	must(Watch(set, unix.EPOLL_CTL_DEL, b, nil))
	must(Close(a))
	must(Close(b))
	for what, err := range map[string]error{
		"close": Close(-1), "shutdown": Shutdown(-1, unix.SHUT_WR), "set": SetInt(-1, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1), "linger": SetLinger(-1, true),
		"watch": Watch(set, unix.EPOLL_CTL_DEL, -1, nil),
	} {
		if !errors.Is(err, unix.EBADF) {
			t.Errorf("%s of no descriptor: %v", what, err)
		}
	}
	if _, err := GetInt(-1, unix.SOL_SOCKET, unix.SO_KEEPALIVE); !errors.Is(err, unix.EBADF) {
		t.Errorf("get of no descriptor: %v", err)
	}
}
