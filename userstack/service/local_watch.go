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

// pairWatch reports when an end of a pair is closed that only programs have. An epoll
// set holds no reference to its sockets. So each end is added before it is given away,
// and as long as it exists, the set reports the close of the other end.
//
// If both ends are closed before the set is read, the set reports nothing, because
// they are not in it any more. So its content (fdinfo) is compared with the table after
// a number of new connections, and some time after the last one.
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
	sweepLeast = 64 // new connections before a sweep

	// Two bits of the data of an event; the others are the number of the localConn.
	endsBits = 2
	tcpBits  = 2 // of the TCP socket; 0 and 1 are the ends
)

// add adds both ends of a localConn and gives it a number. The caller holds t.mu.
func (w *pairWatch) add(t *localTable, f *localConn) error {
	if err := w.open(t); err != nil {
		return err
	}
	w.next++
	f.id = w.next
	for i, end := range []interface{ Control(func(int) error) error }{f.p, f.q} {
		// Epoll always reports a hang-up. No other event is needed.
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

// tcp returns a channel that is closed when data, or the end, arrives on the client's
// TCP connection. stop ends the watch.
func (w *pairWatch) tcp(f *localConn) (event <-chan struct{}, stop func(), err error) {
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

// open makes the set if there is none. The caller holds t.mu.
func (w *pairWatch) open(t *localTable) (err error) {
	switch {
	case t.closed:
		return os.ErrClosed
	case w.set != nil:
		return nil
	}
	if w.set, err = epollset.Open(t.guard, t.deliver); err != nil {
		return err
	}
	w.tcps = map[uint64]chan struct{}{}
	w.pause = sweepFirst
	w.timer = time.AfterFunc(w.pause, t.guarded(t.sweep))
	return nil
}

// deliver handles the events of the set.
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

// sweep ends each localConn whose two ends do not exist any more.
func (t *localTable) sweep() {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	w := &t.watch
	since := w.next // fdinfo may not have later ones
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
		w.pause = 0 // the next connection starts it again
	}
}

// registration parses a line of an epoll set's fdinfo and returns the data of the
// entry's events.
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

// readInto reads a file like os.ReadFile, into buf.
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

// close ends the watch. The connections that remain have no handler any more.
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
