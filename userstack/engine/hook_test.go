// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// told is a call of a hook.
type told struct{ readable, writable, plain bool }

// TestHook: what the function of Hook is told of each thing that can happen to a
// socket. Only who awaits room is told of it, once.
func TestHook(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	s, peer := newSocket(t, l)
	calls := make(chan told, 100)
	next := func(what string, want told) {
		t.Helper()
		select {
		case got := <-calls:
			if got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
		case <-time.After(testkind.Patience):
			t.Fatalf("%s: not told", what)
		}
	}
	nothing := func(what string) {
		t.Helper()
		for range 3 {
			l.Sync()
		}
		select {
		case got := <-calls:
			t.Errorf("%s: told %+v", what, got)
		default:
		}
	}
	write := func(fd int, b string, flags int) {
		t.Helper()
		if err := unix.Sendto(fd, []byte(b), flags, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Hook(func(readable, writable, plain bool) { calls <- told{readable, writable, plain} })
	nothing("a new socket")

	write(peer, "data", 0)
	next("data", told{readable: true, plain: true})

	var b [10]byte
	if err := s.Control(func(fd uintptr) { write(int(fd), "answer", 0) }); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(peer, b[:]); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	nothing("the peer reads")

	if err := s.Control(func(fd uintptr) {
		if n, err := unix.Read(int(fd), b[:]); n != 4 || err != nil {
			t.Error(n, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	s.AwaitRoom()
	next("room that was there", told{writable: true})
	nothing("room told already")

	switch err := unix.Sendto(peer, []byte("!"), unix.MSG_OOB, nil); err {
	case nil:
		next("an urgent byte", told{readable: true})
		write(peer, "more", 0)
		next("data behind an urgent byte", told{readable: true})
	case unix.EOPNOTSUPP: // before Linux 5.15
	default:
		t.Fatal(err)
	}
	if err := unix.Shutdown(peer, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	next("the end", told{readable: true})
	s.Hook(nil)
}

// TestRoom: a writer that the other end keeps waiting is told when there is room
// again.
func TestRoom(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	s, peer := newSocket(t, l)
	room := make(chan struct{}, 100)
	s.Hook(func(_, writable, _ bool) {
		if writable {
			room <- struct{}{}
		}
	})
	sent := 0
	fill := func(fd uintptr) {
		for {
			n, err := unix.Write(int(fd), make([]byte, 4096))
			if err == unix.EAGAIN {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			sent += n
		}
	}
	for round := range 3 {
		if err := s.Control(fill); err != nil {
			t.Fatal(err)
		}
		s.AwaitRoom()
		l.Sync()
		if len(room) > 0 {
			t.Fatalf("round %d: room where there is none", round)
		}
		buf := make([]byte, 64<<10)
		for sent > 0 {
			n, err := unix.Read(peer, buf)
			if err != nil {
				t.Fatal(err)
			}
			sent -= n
		}
		await(t, "room", room)
		l.Sync()
		if len(room) > 0 {
			t.Errorf("round %d: told of room again", round)
		}
	}
}
