// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// gateTries bounds how often counters of a socket are read again because segments of the
// peer changed them between two system calls.
const gateTries = 16

// gate is the attachment of the program that runs for each packet that leaves the cgroup. It
// is made when it is first needed.
type gate struct {
	link link.Link
	err  error // why the program cannot be attached
}

func (g *gate) close() error {
	if g.link == nil {
		return nil
	}
	return g.link.Close()
}

// needGate attaches the gate program if it is not attached yet. After a failure it does
// not try again.
func (p *Program) needGate() error {
	p.gateMu.Lock()
	defer p.gateMu.Unlock()
	if p.gate.link != nil || p.gate.err != nil {
		return p.gate.err
	}
	if err := p.objs.gateErr; err != nil {
		p.gate.err = fmt.Errorf("%w: %w", ErrNoGate, err)
		return p.gate.err
	}
	l, err := link.AttachRawLink(link.RawLinkOptions{
		Target:  p.cgroup.fd(),
		Program: p.objs.gate,
		Attach:  ebpf.AttachCGroupInetEgress,
	})
	if err != nil {
		err = bpfError("attach the gate to the cgroup "+p.cgroup.name, err)
		p.gate.err = fmt.Errorf("%w: %w", ErrNoGate, err)
		return p.gate.err
	}
	p.gate.link = l
	p.log.Debug("gate attached", "cgroup", p.cgroup.name)
	return nil
}

// GateConnect is MarkConnect for a socket that other processes have too. If both ends
// announce SMC-R, data can be sent on it only by [Gate.Send]. Bytes that other processes
// write stay in the buffer of the socket. If one end does not announce SMC-R, there is no
// gate.
// Errors: ErrNoGate, and those of MarkConnect.
func (p *Program) GateConnect(fd int) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	if err := p.needGate(); err != nil {
		return err
	}
	return p.markConnect(fd, flagConnect|flagGated)
}

// GateListen is MarkListen for a socket that other processes have too. Each accepted socket
// is gated as with GateConnect, before any process can get it. The listener takes the share of
// a user, of whom 0 is root and the user of the stack.
// Errors: ErrNoGate, and those of MarkListen.
func (p *Program) GateListen(fd int, owner uint32) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	if err := p.needGate(); err != nil {
		return err
	}
	return p.markListen(fd, flagListen|flagGateListen, owner)
}

// A Gate is the only way to send data on a gated socket. Only one goroutine at a time may use
// it, and there must be only one Gate for each socket.
//
// The kernel lets as many bytes of the stream pass as Send has sent. Before they may pass,
// Send checks that it wrote them itself. No process can replace them, because bytes in the
// buffer of a socket cannot be removed.
type Gate struct {
	p *Program
	m mark
}

// Gate returns the gate of an established connection, or nil if it has none.
func (p *Program) Gate(fd int) (*Gate, error) {
	if err := p.acquire(); err != nil {
		return nil, err
	}
	defer p.release()
	m, err := p.objs.lookup(fd)
	switch {
	case errors.Is(err, ErrNotMarked):
		return nil, nil
	case err != nil:
		return nil, err
	case m.Flags&flagGated == 0:
		return nil, nil
	}
	return &Gate{p, m}, nil
}

// Send sends msg, which must fit the send buffer. If last is true, Send opens the gate after
// msg: all later data passes, including what other processes have written meanwhile.
//
// The error is ErrForeign if other processes have written to the socket before. Then nothing
// of msg is sent.
func (g *Gate) Send(fd int, msg []byte, last bool) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	// Write msg to the buffer, check that the buffer has only data of Send, and move
	// the limit then. TCP keeps what the gate drops.
	if err := sendAll(fd, msg); err != nil {
		return fmt.Errorf("tcpopt: send: %w", err)
	}
	m := g.m
	m.Limit += uint32(len(msg))
	if err := g.queued(fd, uint64(m.Limit)); err != nil {
		return err
	}
	if last {
		m = m.opened()
	}
	if err := g.p.objs.update(fd, m); err != nil {
		return err
	}
	g.m = m
	// The program may set the option meanwhile, so there is no call between these.
	cork, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK)
	if err != nil {
		return fmt.Errorf("tcpopt: TCP_CORK: %w", err)
	}
	for _, v := range [...]int{0, cork} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, v); err != nil {
			return fmt.Errorf("tcpopt: TCP_CORK: %w", err)
		}
		if cork == 0 {
			break // one call is enough: TCP sends
		}
	}
	return nil
}

// sendAll writes msg to the send buffer, whole and without waiting.
func sendAll(fd int, msg []byte) error {
	for {
		n, err := unix.SendmsgN(fd, msg, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL|unix.MSG_MORE)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n < len(msg):
			return unix.EAGAIN
		default:
			return nil
		}
	}
}

// queued returns ErrForeign unless exactly n bytes have been written to the socket since it
// was connected.
//
// The number of bytes without acknowledgement is read first. So an acknowledgement that comes
// between the two system calls makes the sum too large, never too small.
func (g *Gate) queued(fd int, n uint64) error {
	for range gateTries {
		waiting, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil {
			return fmt.Errorf("tcpopt: SIOCOUTQ: %w", err)
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return fmt.Errorf("tcpopt: TCP_INFO: %w", err)
		}
		acked := info.Bytes_acked
		if g.m.Flags&flagAccepted == 0 && acked > 0 {
			acked-- // the SYN counts as a byte
		}
		if uint64(waiting)+acked == n {
			return nil
		}
	}
	return fmt.Errorf("%w: it has written to it", ErrForeign)
}

// Open opens the gate without a message, because the peer has declined SMC-R. read is
// how many bytes were read from the socket to learn that.
//
// The error is ErrForeign if other processes have read from the socket too: then the message
// may consist of parts of other messages. The gate stays closed.
func (g *Gate) Open(fd, read int) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	for range gateTries {
		r, err := receivedOn(fd)
		if err != nil {
			return err
		}
		if r.taken == uint64(read) {
			return g.open(fd)
		}
	}
	return fmt.Errorf("%w: it has read from it", ErrForeign)
}

// OpenHere opens the gate of a connection on which nobody speaks CLC, because both ends are
// in one network namespace. The error is ErrNotHere unless the kernel has seen that: see
// answers.go. The gate stays closed then.
func (g *Gate) OpenHere(fd int) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	if g.m.Flags&flagHere == 0 {
		return ErrNotHere
	}
	return g.open(fd)
}

// OpenToData opens the gate of a connection from which nothing was read, because what
// the peer has sent is data, which isData tells from a CLC message. The bytes stay
// where they are.
//
// If the peer has sent nothing, it must have closed its side.
//
// The error is ErrForeign if another process has read from the socket, has shut down
// reading, or has set SO_PEEK_OFF, or if isData returns false. The gate stays closed then.
func (g *Gate) OpenToData(fd int, isData func(first []byte) bool) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	var b []byte
	for range gateTries {
		r, err := receivedOn(fd)
		if err != nil {
			return err
		}
		if b = b[:cap(b)]; uint64(len(b)) <= r.all {
			b = make([]byte, 2*r.all+1024)
		}
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			return fmt.Errorf("tcpopt: peek: %w", err)
		}
		b = b[:max(0, n)]
		// b must be all that the peer has sent, and no process may have read any of it.
		if r, err = receivedOn(fd); err != nil {
			return err
		}
		if r.taken == 0 && uint64(len(b)) == r.all && (r.all > 0 || r.end) {
			if !isData(b) {
				return fmt.Errorf("%w: it has made a CLC message look like data", ErrForeign)
			}
			return g.open(fd)
		}
	}
	return fmt.Errorf("%w: it has read from it", ErrForeign)
}

// received counts what a socket has received.
type received struct {
	taken uint64 // bytes that any process has read; never too few
	all   uint64 // bytes that have arrived
	end   bool   // the peer has closed its side
}

func receivedOn(fd int) (r received, err error) {
	pending, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return r, fmt.Errorf("tcpopt: SIOCINQ: %w", err)
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return r, fmt.Errorf("tcpopt: TCP_INFO: %w", err)
	}
	r.all = info.Bytes_received
	switch info.State {
	case unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_LAST_ACK, unix.BPF_TCP_CLOSING, unix.BPF_TCP_TIME_WAIT:
		r.end = true
		if r.all > 0 {
			r.all-- // the FIN counts as a byte
		}
	}
	r.taken = r.all - uint64(pending)
	return r, nil
}

// opened returns the mark of a connection that is plain TCP from now on.
func (m mark) opened() mark {
	m.Flags &^= flagGated
	m.State = PeerNoSMC
	return m
}

func (g *Gate) open(fd int) error {
	m := g.m.opened()
	if err := g.p.objs.update(fd, m); err != nil {
		return err
	}
	g.m = m
	return nil
}
