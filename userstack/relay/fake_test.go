// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"

	"smcr/internal/testing/testkind"
)

// fakeStream is the network side of a relay without a network. It keeps what
// package userstack promises of a connection: the same errors at the same
// times, data straight from and to the program's end.
type fakeStream struct {
	wake *sync.Cond // on mu
	mu   sync.Mutex
	done chan struct{}

	in       []byte // sent by the peer, not taken by WriteTo
	inEnd    bool   // the peer sends no more
	peerGone bool   // the peer has closed
	reset    bool   // by the peer
	full     bool   // there is no room for what the program writes

	out     bytes.Buffer // what the peer got
	outEnd  bool         // and then the end of it
	closed  bool         // by the relay
	aborted bool         // by the relay, or a close with data unread: a reset for the peer
}

func newFakeStream() *fakeStream {
	f := &fakeStream{done: make(chan struct{})}
	f.wake = sync.NewCond(&f.mu)
	return f
}

// change does f with the lock held and wakes who waits.
func (f *fakeStream) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	// It has ended by a reset, or when both sides have closed.
	if f.reset || f.aborted || f.closed && f.peerGone {
		select {
		case <-f.done:
		default:
			close(f.done)
		}
	}
	f.wake.Broadcast()
}

// What the peer does.
func (f *fakeStream) peerSends(s string) { f.change(func() { f.in = append(f.in, s...) }) }
func (f *fakeStream) peerEnds()          { f.change(func() { f.inEnd = true }) }
func (f *fakeStream) peerCloses()        { f.change(func() { f.inEnd, f.peerGone = true, true }) }
func (f *fakeStream) peerResets()        { f.change(func() { f.reset, f.in = true, nil }) }

// await waits until cond, called with the lock held, holds.
func (f *fakeStream) await(cond func() bool) bool {
	return testkind.Poll(testTime, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return cond()
	})
}

// ReadFrom implements stream.
func (f *fakeStream) ReadFrom(r io.Reader) (total int64, err error) {
	buf := make([]byte, 16<<10)
	for {
		f.mu.Lock()
		for f.full && f.writeErr() == nil {
			f.wake.Wait()
		}
		err := f.writeErr()
		f.mu.Unlock()
		if err != nil {
			return total, err
		}
		n, err := r.Read(buf)
		total += int64(n)
		f.change(func() { f.out.Write(buf[:n]) })
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func (f *fakeStream) writeErr() error {
	switch {
	case f.closed:
		return net.ErrClosed
	case f.reset:
		return syscall.ECONNRESET
	case f.peerGone, f.outEnd:
		return syscall.EPIPE
	}
	return nil
}

// WriteTo implements stream.
func (f *fakeStream) WriteTo(w io.Writer) (total int64, err error) {
	for {
		f.mu.Lock()
		for len(f.in) == 0 && !f.inEnd && !f.closed && !f.reset {
			f.wake.Wait()
		}
		in, end, closed, reset := f.in, f.inEnd, f.closed, f.reset
		f.in = nil // being delivered: not unread
		f.mu.Unlock()
		switch {
		case closed:
			return total, net.ErrClosed
		case reset:
			return total, syscall.ECONNRESET
		case len(in) > 0:
			n, err := w.Write(in)
			total += int64(n)
			f.change(func() {
				// Close came meanwhile, and there is unread data after all.
				f.aborted = f.aborted || f.closed && n < len(in) && !f.reset
				f.in = append(in[n:len(in):len(in)], f.in...)
			})
			if err != nil {
				return total, err
			}
		case end:
			return total, nil
		}
	}
}

// CloseWrite implements stream.
func (f *fakeStream) CloseWrite() (err error) {
	f.change(func() {
		if f.closed {
			err = net.ErrClosed
			return
		}
		f.outEnd = true
	})
	return err
}

// Close implements stream.
func (f *fakeStream) Close() error { return f.end(func() bool { return len(f.in) > 0 }) }

// Abort implements stream.
func (f *fakeStream) Abort() error { return f.end(func() bool { return true }) }

func (f *fakeStream) end(abort func() bool) (err error) {
	f.change(func() {
		if f.closed {
			err = net.ErrClosed
			return
		}
		f.closed, f.outEnd, f.aborted = true, true, abort() && !f.reset
	})
	return err
}

// Done implements stream.
func (f *fakeStream) Done() <-chan struct{} { return f.done }
