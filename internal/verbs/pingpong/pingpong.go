// SPDX-License-Identifier: Apache-2.0

package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"smcr/internal/verbs/rc"
	"smcr/rdmaverbs"
	"smcr/smc"
)

// Options are what both sides must agree on (Size, Iters, Check) and what each
// chooses.
type Options struct {
	Size     int // bytes of a message
	Iters    int // messages in each direction
	RxDepth  int // receives posted
	MTU      smc.MTU
	Check    bool // compare each message with what it must be
	Patience time.Duration
}

// A Result is what was measured.
type Result struct {
	Local, Remote Dest
	MTU           smc.MTU
	Bytes         int64 // in both directions
	Elapsed       time.Duration
	Checked       int // messages compared
}

// ErrData is matched by the error of a message with wrong content.
var ErrData = errors.New("wrong data")

// Work requests are told apart by their IDs.
const (
	idRecv = 1
	idSend = 2
)

// Run plays one side over a TCP connection to the other, whose exchange it does
// first. The connection stays the caller's.
func Run(ctx context.Context, tcp net.Conn, client bool, s *rc.Source, o Options) (*Result, error) {
	port, err := s.Port(1)
	if err != nil {
		return nil, err
	}
	c, err := rc.New(s, rc.Config{Bytes: 2 * o.Size, MaxSend: 1, MaxRecv: o.RxDepth, Patience: o.Patience})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p := &player{Conn: c, o: o, client: client}
	p.fill()
	if err := p.postRecvs(o.RxDepth); err != nil {
		return nil, err
	}
	r := &Result{Local: Dest{QPN: c.QP.QPN(), PSN: c.PSN, GID: s.GID.GID}, MTU: min(o.MTU, port.ActiveMTU)}
	connect := func() error {
		return c.Connect(rc.Peer{GID: r.Remote.GID, QPN: r.Remote.QPN, PSN: r.Remote.PSN}, r.MTU, rc.Timeout, 1)
	}
	if err := r.exchange(tcp, client, o.Patience, connect); err != nil {
		return nil, err
	}
	start := time.Now()
	s.Hold()
	err = p.play(ctx)
	s.Release()
	if err != nil {
		return nil, err
	}
	r.Elapsed = time.Since(start)
	if client {
		rc.Linger(ctx)
	}
	r.Bytes = 2 * int64(o.Size) * int64(o.Iters)
	r.Checked = p.checked
	return r, nil
}

// exchange tells the sides about each other. The server is connected before it
// answers, so that no message can come too early.
func (r *Result) exchange(tcp net.Conn, client bool, patience time.Duration, connect func() error) error {
	if err := tcp.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	send := func() error {
		_, err := tcp.Write(r.Local.AppendTo(nil))
		return err
	}
	recv := func() (err error) {
		var b [DestLen]byte
		if _, err = io.ReadFull(tcp, b[:]); err == nil {
			r.Remote, err = ParseDest(b[:])
		}
		return err
	}
	last := func() error {
		var b [len(done)]byte
		_, err := io.ReadFull(tcp, b[:])
		return err
	}
	steps := []func() error{recv, connect, send, last}
	if client {
		finish := func() error {
			_, err := io.WriteString(tcp, done)
			return err
		}
		steps = []func() error{send, recv, connect, finish}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("exchange of queue pairs with %v: %w", tcp.RemoteAddr(), err)
		}
	}
	return nil
}

// A player sends from the first half of its memory and receives into the second.
type player struct {
	*rc.Conn
	o       Options
	client  bool
	posted  int // receives
	checked int
}

func (p *player) out() []byte { return p.Buf[:p.o.Size] }
func (p *player) in() []byte  { return p.Buf[p.o.Size:] }

// The bytes of a message. ibv_rc_pingpong sends its memory as it is, the byte
// filler everywhere; when it checks, its client first zeroes the first byte of
// each page and its server wants those zeros. What a server received, it sends
// back: so our client's messages may be anything else in all other places.
const filler = 0x7b

var page = os.Getpagesize()

// pattern is the byte of our client's messages at offset i: not periodic in any
// packet size.
func pattern(i int) byte {
	if i%page == 0 {
		return 0
	}
	return byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*7
}

func (p *player) fill() {
	b := p.out()
	for i := range b {
		if p.client && p.o.Check {
			b[i] = pattern(i)
		} else {
			b[i] = filler
		}
	}
}

// check compares a message. Only our client knows every byte: the server's peer
// may be of either kind.
func (p *player) check() error {
	p.checked++
	b := p.in()
	if p.client {
		for i, got := range b {
			if want := pattern(i); got != want {
				return fmt.Errorf("%w: byte %d of message %d is %#02x, but %#02x was sent", ErrData, i, p.checked, got, want)
			}
		}
		return nil
	}
	ours := len(b) > 1 && b[1] == pattern(1)
	for i, got := range b {
		want := byte(filler)
		if ours || i%page == 0 {
			want = pattern(i)
		}
		if got != want {
			return fmt.Errorf("%w: byte %d of message %d is %#02x instead of %#02x (does the client check too?)", ErrData, i, p.checked, got, want)
		}
	}
	return nil
}

func (p *player) postRecvs(n int) error {
	wr := rdmaverbs.RecvWR{ID: idRecv, SG: rdmaverbs.SGE{MR: p.MR, Off: p.o.Size, Len: p.o.Size}}
	for range n {
		if _, err := p.QP.PostRecv(wr); err != nil {
			return err
		}
		p.posted++
	}
	return nil
}

func (p *player) send() error {
	_, err := p.QP.PostSend(rdmaverbs.SendWR{
		ID: idSend, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled,
		SG: [2]rdmaverbs.SGE{{MR: p.MR, Len: p.o.Size}},
	})
	return err
}

// play sends and receives in turns: a side sends when its last message has been
// acknowledged and answered.
func (p *player) play(ctx context.Context) error {
	if p.client {
		if err := p.send(); err != nil {
			return err
		}
	}
	wc := make([]rdmaverbs.WC, 1)
	for i := range p.o.Iters {
		if p.client {
			if _, err := p.Send.Next(ctx, wc); err != nil {
				return fmt.Errorf("send message %d: %w", i+1, err)
			}
		}
		if _, err := p.Recv.Next(ctx, wc); err != nil {
			return fmt.Errorf("receive message %d: %w", i+1, err)
		}
		if err := p.received(wc[0].Len); err != nil {
			return err
		}
		if p.client && i+1 == p.o.Iters {
			break
		}
		if err := p.send(); err != nil {
			return err
		}
		if !p.client {
			if _, err := p.Send.Next(ctx, wc); err != nil {
				return fmt.Errorf("send message %d: %w", i+1, err)
			}
		}
	}
	return nil
}

func (p *player) received(n int) error {
	if n != p.o.Size {
		return fmt.Errorf("received a message of %d bytes, expected %d: use the same size on both sides: %w", n, p.o.Size, ErrData)
	}
	if p.o.Check {
		if err := p.check(); err != nil {
			return err
		}
		if !p.client { // it goes back as it came
			copy(p.out(), p.in())
		}
	}
	if p.posted--; p.posted <= 1 {
		return p.postRecvs(p.o.RxDepth - p.posted)
	}
	return nil
}
