// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/epollset"
)

// pairWatch tells when an end of a pair is closed that only programs have. An epoll
// set has no reference to the sockets in it: each end is entered before it is given
// away, and tells of the other's close for as long as it lives itself.
//
// When both ends are closed before the set is read, it tells nothing: they are no
// longer in it. So what is in it (fdinfo) is compared with the table now and then:
// after a number of new connections, and some time after the last one.
type pairWatch struct {
	set  *epollset.Set
	next uint64

	tcps map[uint64]chan struct{}

	begun int // connections since the last sweep
	timer *time.Timer
	pause time.Duration
	buf   []byte
}

const (
	sweepFirst = time.Second
	sweepLast  = time.Minute
	sweepLeast = 64 // new connections that are worth a sweep

	// Two bits of what an event carries; the rest is the flight's number.
	endsBits = 2
	tcpBits  = 2 // of the TCP socket; 0 and 1 are the ends
)

// add enters both ends of a flight, and numbers it. t.mu is held.
func (w *pairWatch) add(t *localTable, f *flight) error {
	if err := w.open(t); err != nil {
		return err
	}
	w.next++
	f.id = w.next
	for i, end := range []interface{ Control(func(int) error) error }{f.p, f.q} {
		// A hang-up is told of in any case. Nothing else is.
		if err := end.Control(func(fd int) error {
			return w.set.Add(fd, unix.EPOLLET, f.id<<endsBits|uint64(i))
		}); err != nil {
			return err
		}
	}
	w.begun++
	switch {
	case w.begun >= max(sweepLeast, len(t.byID)/2):
		w.begun = 0
		w.timer.Reset(0)
	case w.pause != sweepFirst:
		w.pause = sweepFirst
		w.timer.Reset(w.pause)
	}
	return nil
}

// tcp returns a channel that is closed when something comes over the client's TCP
// connection. stop ends the watch.
func (w *pairWatch) tcp(f *flight) (event <-chan struct{}, stop func(), err error) {
	t := f.table
	t.mu.Lock()
	defer t.mu.Unlock()
	ch := make(chan struct{})
	if err := f.sock.Control(func(fd int) error {
		return w.set.Add(fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLONESHOT, f.id<<endsBits|tcpBits)
	}); err != nil {
		return nil, nil, err
	}
	w.tcps[f.id] = ch
	return ch, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(w.tcps, f.id)
		_ = f.sock.Control(w.set.Remove)
	}, nil
}

// open makes the set where there is none. t.mu is held.
func (w *pairWatch) open(t *localTable) (err error) {
	switch {
	case t.closed:
		return os.ErrClosed
	case w.set != nil:
		return nil
	}
	if w.set, err = epollset.Open(t.deliver); err != nil {
		return err
	}
	w.tcps = map[uint64]chan struct{}{}
	w.pause = sweepFirst
	w.timer = time.AfterFunc(w.pause, t.sweep)
	return nil
}

// deliver is told what has happened.
func (t *localTable) deliver(events []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, data := range events {
		id := data >> endsBits
		if data&(1<<endsBits-1) == tcpBits {
			if ch := t.watch.tcps[id]; ch != nil {
				delete(t.watch.tcps, id)
				close(ch)
			}
		} else if f := t.byID[id]; f != nil && !f.hungUp {
			f.hungUp = true
			t.review(f)
		}
	}
}

// sweep ends the flights of whose ends none is left.
func (t *localTable) sweep() {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	w := &t.watch
	since := w.next // later ones may be missing in what is read
	w.begun = 0
	buf, num := w.buf, w.set.Num()
	t.mu.Unlock()
	buf, err := readInto(buf, fmt.Sprintf("/proc/self/fdinfo/%d", num))
	live := map[uint64]bool{}
	for line := range bytes.Lines(buf) {
		if id, ok := registration(line); ok {
			live[id>>endsBits] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if cap(buf) < 1<<20 {
		w.buf = buf
	}
	if err == nil {
		for id, f := range t.byID {
			if id <= since && !live[id] && !f.hungUp {
				f.hungUp = true
				t.review(f)
			}
		}
	}
	if t.closed {
		return
	}
	switch {
	case len(t.byID) > 0:
		w.timer.Reset(w.pause)
		w.pause = min(2*w.pause, sweepLast)
	default:
		w.pause = 0 // the next one starts it
	}
}

// registration returns what an event of an epoll set's entry carries, of a line of
// its fdinfo.
func registration(line []byte) (data uint64, ok bool) {
	if !bytes.HasPrefix(line, []byte("tfd:")) {
		return 0, false
	}
	_, rest, ok := bytes.Cut(line, []byte("data:"))
	if !ok {
		return 0, false
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	data, err := strconv.ParseUint(string(fields[0]), 16, 64)
	return data, err == nil
}

// readInto is os.ReadFile into buf.
func readInto(buf []byte, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return buf[:0], err
	}
	defer f.Close()
	b := bytes.NewBuffer(buf[:0])
	_, err = b.ReadFrom(f)
	return b.Bytes(), err
}

// close ends the watch. Flights that are left have no handler any more.
func (t *localTable) close() error {
	t.mu.Lock()
	t.closed = true
	set := t.watch.set
	if set != nil {
		t.watch.timer.Stop()
	}
	t.mu.Unlock()
	if set == nil {
		return nil
	}
	return set.Close()
}
