// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
	"smcr/smc"
)

// A program is let go once: of a client, before it is known what becomes of the connection, because the server's must not be first (package
// rendezvous says why); of a server, when that is known. From then on, what the program sends is in inner, and is lost only with the
// connection: whoever carries it finds it there.

// LetGo makes inner, the other end of the program's connection, and lets the program go: its connect() or accept() returns. It reports
// whether the program is known to have its connection. Later calls only do that. It does not wait. Errors: net.ErrClosed after Reset,
// or one that wraps a syscall.Errno; the connection was reset then.
func (f *Flow) LetGo() (has bool, err error) {
	inner := f.program()
	if inner == nil {
		if inner, err = f.letsGo(); err != nil {
			return false, err
		}
	}
	return inner.heard(), nil
}

func (f *Flow) letsGo() (inner *stream, err error) {
	var dev uint32
	s := &stream{end: f.innerEnd}
	s.end.tsAge = monotonic() - f.held
	if err = s.connect(f.d.ns, f.Tuple.reverse()); err == nil {
		s.control(limitReceive)
		f.mu.Lock()
		if dev, err = f.splits(); err == nil {
			f.inner = s
		}
		f.mu.Unlock()
	}
	if err != nil {
		s.close()
		f.Reset()
		return nil, err
	}
	f.give(f.first, dev)
	f.d.gave(f)
	return s, nil
}

// Split lets the program go, unless LetGo has. fd is the descriptor of inner, which is lent to the caller, who carries the bytes, calls
// giveBack and then Finish or Reset at the end. Errors: net.ErrClosed after Reset, or one that wraps a syscall.Errno; the connection was
// reset then.
func (f *Flow) Split() (fd int, giveBack func(), err error) {
	f.decided()
	f.mu.Lock()
	inner := f.inner
	f.decides = true
	f.mu.Unlock()
	if inner == nil {
		if inner, err = f.letsGo(); err != nil {
			return -1, nil, err
		}
	}
	if fd, giveBack, err = inner.lend(nil); err != nil {
		f.Reset()
	}
	return fd, giveBack, err
}

// lost reports whether the program of a client was let go, and is not known to have its connection. Then inner is gone, without a word to
// the program: its TCP has heard nothing of the connection, and a reset would refuse it.
func (f *Flow) lost(inner *stream) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Role != smc.Client || f.decides || inner.heard() {
		return false
	}
	repair := func(mode int) {
		inner.control(func(fd int) { _ = atonce.SetInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, mode) })
	}
	repair(repairOn)
	if inner.heard() { // meanwhile
		repair(repairOff)
		return false
	}
	inner.close()
	f.inner = nil
	return true
}

// letGo gives the program the packet that it waits for. It may be called again if that was lost.
func (f *Flow) letGo() { f.give(f.first, f.comesBy()) }

// give gives the program a packet, by a device: that by which it has sent the last one.
func (f *Flow) give(fr *frame, dev uint32) {
	f.giving.Lock()
	defer f.giving.Unlock()
	f.d.write(fr.to(forProgram, dev))
}
