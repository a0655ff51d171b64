// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// gateTries bounds how often a question to the kernel is asked anew whose answer
// the peer's segments have changed meanwhile.
const gateTries = 16

// gate is the program at the sockets' way out, attached when it is first needed:
// it runs for each packet of the cgroup.
type gate struct {
	prog *ebpf.Program
	link *link.RawLink
	err  error // why there is none
}

func (g *gate) close() []error {
	var errs []error
	if g.link != nil {
		errs = append(errs, g.link.Close())
	}
	return append(errs, g.prog.Close())
}

// needGate attaches the gate program unless it is there. After a failure it does
// not try again.
func (p *Program) needGate() error {
	p.gateMu.Lock()
	defer p.gateMu.Unlock()
	if p.gate.link != nil || p.gate.err != nil {
		return p.gate.err
	}
	prog, err := p.objs.loadGate()
	if err != nil {
		p.gate.err = fmt.Errorf("%w: %w", ErrNoGate, err)
		return p.gate.err
	}
	l, err := link.AttachRawLink(link.RawLinkOptions{
		Target:  p.cgroup.fd(),
		Program: prog,
		Attach:  ebpf.AttachCGroupInetEgress,
	})
	if err != nil {
		err = bpfError("attach the gate to the cgroup "+p.cgroup.name, err)
		p.gate.err = fmt.Errorf("%w: %w", ErrNoGate, errors.Join(err, prog.Close()))
		return p.gate.err
	}
	p.gate.prog, p.gate.link = prog, l
	p.log.Debug("gate attached", "cgroup", p.cgroup.name)
	return nil
}

// GateConnect is MarkConnect for a socket that others have, too. If both ends
// announce SMC-R, then nobody can send data on it but through [Gate.Send]. Bytes
// that others write stay in the socket's buffer. If one end does not announce it,
// there is no gate.
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

// GateListen is MarkListen for a socket that others have, too: what is accepted
// from it is gated as GateConnect says, from before anybody can have it.
// Errors: ErrNoGate, and those of MarkListen.
func (p *Program) GateListen(fd int) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	if err := p.needGate(); err != nil {
		return err
	}
	return p.markListen(fd, flagListen|flagGateListen)
}

// A Gate is the one way to send data on a socket whose handshake announced SMC-R
// and that others have, too. It is for one goroutine at a time, and there must be
// one of each socket only.
//
// The kernel lets the first bytes of the stream pass, as many as Send has sent. That
// these are Send's is made sure of before they may pass, so nobody can put others in
// their place: a byte in a socket's buffer cannot be taken back.
type Gate struct {
	p *Program
	m mark
}

// Gate returns the gate of a connection that is established, nil if it has none.
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

// Send sends msg, which fits the send buffer. With last it opens the gate behind
// msg: what others have written meanwhile follows, and all that comes.
//
// It is ErrForeign if others have written to the socket before. Then nothing of msg
// is sent.
func (g *Gate) Send(fd int, msg []byte, last bool) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	cork, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK)
	if err != nil {
		return fmt.Errorf("tcpopt: TCP_CORK: %w", err)
	}
	// Into the buffer first, then looked at, then let pass. TCP keeps what the
	// gate drops.
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
	for _, v := range [...]int{0, cork} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, v); err != nil {
			return fmt.Errorf("tcpopt: TCP_CORK: %w", err)
		}
		if cork == 0 {
			break // one call is enough to have TCP send
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

// queued returns ErrForeign unless n bytes have been written to the socket since it
// is connected.
//
// What waits for an acknowledgement is read first: an acknowledgement in between
// makes the sum too large, never too small.
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
			acked-- // the SYN
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
// It is ErrForeign if others have read from it, too: the message may then be made up
// of parts of others. The gate stays shut.
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

// OpenHere opens the gate of a connection whose ends are both of this host, which the
// caller has made sure of: nobody speaks CLC on it.
func (g *Gate) OpenHere(fd int) error {
	if err := g.p.acquire(); err != nil {
		return err
	}
	defer g.p.release()
	return g.open(fd)
}

// OpenToData opens the gate of a connection from which nothing was read, because what
// the peer has sent is data, which isData tells from a CLC message. The bytes stay
// where they are.
//
// If the peer has sent nothing, it must have closed its side.
//
// It is ErrForeign if somebody has read from it, has shut down the reading, or looks
// at other bytes than the first (SO_PEEK_OFF). Then, or if isData says no, the gate
// stays shut.
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
		// All that has ever come, and nobody has taken any of it.
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

// received is what has come on a socket.
type received struct {
	taken uint64 // bytes that were read, by whomever; never too few
	all   uint64 // bytes that came
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
			r.all-- // the FIN
		}
	}
	r.taken = r.all - uint64(pending)
	return r, nil
}

// opened is the mark of a connection that is plain TCP from now on: nobody must take
// what goes over it for SMC's any more.
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
