// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/simfabric"
)

var soakSeeds = flag.Uint64("soak.seeds", 8, "histories that TestSoak tries")
var soakFirst = flag.Uint64("soak.first", 0, "seed of the first history of TestSoak")

// TestSoak runs random histories: connections begin and end on one or two links, transfer
// data in pieces of all sizes with deadlines and half closes, are aborted, or lose their
// TCP connection. Meanwhile devices, ports and the switch fail and work again. In every
// history:
//
//   - a reader receives a prefix of what was written, and all of it if the end is
//     orderly;
//   - without failures and aborts, every connection ends in order;
//   - nothing hangs, and everything is released at the end.
//
// To repeat a history that fails, use -run TestSoak -soak.first=N -soak.seeds=1.
func TestSoak(t *testing.T) {
	for seed := *soakFirst; seed < *soakFirst+*soakSeeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) { newSoak(t, seed).run() })
		})
	}
}

type soak struct {
	t     *testing.T
	b     *bed
	rng   *rand.Rand // for the choices of the test
	calm  bool       // no failures
	conns int
}

func newSoak(t *testing.T, seed uint64) *soak {
	rng := rand.New(rand.NewPCG(seed, 0x50a1c))
	sizes := []int{16 << 10, 64 << 10, 512 << 10}
	tune := func(c *userstack.Config) {
		c.RecvBuf, c.SendBuf = sizes[rng.IntN(3)], sizes[rng.IntN(3)]/4
		c.EyeCatcher = rng.IntN(4) == 0
		if rng.IntN(3) == 0 {
			c.MaxConns = 1 + rng.IntN(10)
		}
	}
	s := &soak{t: t, rng: rng, calm: seed%3 == 0, conns: 10 + rng.IntN(40)}
	s.b = newBed(t, bedConfig{
		devices: 1 + rng.IntN(2), serverDevices: 1 + rng.IntN(2), client: tune, server: tune,
		fabric: simfabric.Config{
			Seed: seed, Delay: time.Duration(1+rng.IntN(100)) * time.Microsecond,
			Jitter: time.Duration(rng.IntN(300)) * time.Microsecond, Loss: float64(rng.IntN(3)) * 0.005,
		},
	})
	return s
}

func (s *soak) run() {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var trouble sync.WaitGroup
	if !s.calm {
		seed := s.rng.Uint64()
		trouble.Go(func() { s.trouble(seed, stop) })
	}
	for i := range s.conns {
		seed := s.rng.Uint64()
		wg.Go(func() { s.connection(i, seed) })
		time.Sleep(time.Duration(s.rng.IntN(20)) * time.Millisecond)
	}
	wg.Wait()
	close(stop)
	trouble.Wait()
	// All devices work again.
	c, err := s.reconnect()
	if err != nil {
		s.t.Errorf("after all failures: %v", err)
		return
	}
	s.b.finish(c[0], c[1])
	synctest.Wait()
	if busy(s.b.client) || busy(s.b.server) {
		s.t.Error("a stack is busy without connections")
	}
}

// reconnect makes a connection after the devices work again. The first attempts may use
// link groups that the other side does not have any more.
func (s *soak) reconnect() (c [2]*userstack.Conn, err error) {
	for range 5 {
		time.Sleep(40 * time.Second) // in this time, TEST LINK finds dead links
		ct, st := s.b.tcp()
		var cerr, serr error
		if c[0], c[1], cerr, serr = s.b.rendezvous(ct, st); cerr == nil && serr == nil {
			return c, nil
		}
		err = errors.Join(cerr, serr)
		ct.Close()
		st.Close()
		for _, x := range c {
			if x != nil {
				x.Abort()
			}
		}
	}
	return c, err
}

// trouble makes devices fail and work again.
func (s *soak) trouble(seed uint64, stop chan struct{}) {
	b := s.b
	r := rand.New(rand.NewPCG(seed, 1))
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
		}
		h, dev := b.ch, fmt.Sprintf("eth%d", r.IntN(2))
		if r.IntN(2) == 0 {
			h = b.sh
		}
		outage := time.Duration(r.IntN(1500)) * time.Millisecond
		switch r.IntN(4) {
		case 0:
			h.SetPort(dev, false)
			time.Sleep(outage)
			h.SetPort(dev, true)
		case 1:
			h.Remove(dev)
			time.Sleep(outage)
			h.Restore(dev)
		case 2:
			b.w.SetLAN("lan", false)
			time.Sleep(outage)
			b.w.SetLAN("lan", true)
		case 3:
			h.SetVanished(true)
			time.Sleep(outage)
			h.SetVanished(false)
		}
	}
}

// connection makes one connection and sends data on it.
func (s *soak) connection(i int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	ct, st, err := s.b.w.Connect(netip.AddrPortFrom(bedtest.Addr(1, 0), 0), netip.AddrPortFrom(bedtest.Addr(2, 0), 0))
	if err != nil {
		if s.calm {
			s.t.Error(err)
		}
		return // without TCP there is no SMC-R
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(120))*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var c, v *userstack.Conn
	var cerr, verr error
	wg.Go(func() { v, verr = s.b.server.Server(ctx, st) })
	wg.Go(func() { c, cerr = s.b.client.Client(ctx, ct) })
	wg.Wait()
	if c == nil || v == nil {
		if s.calm {
			s.t.Errorf("connection %d: client %v, server %v", i, cerr, verr)
		}
		if c != nil {
			c.Abort()
		}
		if v != nil {
			v.Abort()
		}
		ct.Close()
		st.Close()
		return
	}
	rough := !s.calm && r.IntN(4) == 0
	up := &flow{s: s, from: c, to: v, seed: seed, size: s.volume(r), rough: rough}
	down := &flow{s: s, from: v, to: c, seed: seed + 1, size: s.volume(r), rough: rough}
	for _, f := range []*flow{up, down} {
		w, rd := r.Uint64(), r.Uint64()
		wg.Go(func() { f.write(rand.New(rand.NewPCG(w, 1))) })
		wg.Go(func() { f.read(rand.New(rand.NewPCG(rd, 1))) })
	}
	if rough {
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
		switch r.IntN(4) {
		case 0:
			c.Abort()
		case 1:
			v.Abort()
		case 2:
			c.Close()
		case 3:
			ct.SetLinger(0)
			ct.Close()
		}
	}
	wg.Wait()
	c.Close()
	v.Close()
	cend, vend := s.b.ended(c), s.b.ended(v)
	orderly := cend == nil && vend == nil
	if s.calm && !orderly {
		s.t.Errorf("connection %d ended with %v and %v", i, cend, vend)
	}
	for _, f := range []*flow{up, down} {
		if f.eof && f.got != f.sent || orderly && !rough && f.got != f.size {
			s.t.Errorf("connection %d: %d of %d bytes came, %d were taken, ends %v and %v, errors %v, %v", i, f.got, f.size, f.sent, cend, vend, f.werr, f.rerr)
		}
	}
}

func (s *soak) volume(r *rand.Rand) int {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return r.IntN(100)
	case 2:
		return r.IntN(100 << 10)
	}
	return r.IntN(1 << 20)
}

// flow is one direction of a connection.
type flow struct {
	s          *soak
	from, to   *userstack.Conn
	seed       uint64
	size       int
	rough      bool
	sent, got  int
	eof        bool // the reader has read the end of the stream
	werr, rerr error
}

func (f *flow) write(r *rand.Rand) {
	src := newStream(f.seed)
	buf := make([]byte, 100<<10)
	for left := f.size; left > 0; {
		n := min(left, 1+r.IntN(len(buf)))
		if r.IntN(3) > 0 {
			n = min(left, 1+r.IntN(500))
		}
		src.fill(buf[:n])
		for p := buf[:n]; len(p) > 0; {
			if r.IntN(10) == 0 {
				f.from.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(2000)) * time.Microsecond))
			}
			m, err := f.write1(r, p)
			p = p[m:]
			f.sent += m
			if isTimeout(err) {
				f.from.SetWriteDeadline(time.Time{})
				err = nil
			}
			if err != nil {
				f.werr = err
				return
			}
		}
		left -= n
		if r.IntN(50) == 0 {
			time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		}
	}
	f.werr = f.from.CloseWrite()
}

// write1 calls Write or ReadFrom.
func (f *flow) write1(r *rand.Rand, p []byte) (int, error) {
	if r.IntN(4) > 0 {
		return f.from.Write(p)
	}
	n, err := f.from.ReadFrom(bytes.NewReader(p))
	return int(n), err
}

func (f *flow) read(r *rand.Rand) {
	want := newStream(f.seed)
	buf, exp := make([]byte, 64<<10), make([]byte, 64<<10)
	check := func(p []byte) (int, error) {
		want.fill(exp[:len(p)])
		if !bytes.Equal(p, exp[:len(p)]) {
			f.s.t.Errorf("flow %d differs between %d and %d", f.seed, f.got, f.got+len(p))
		}
		f.got += len(p)
		return len(p), nil
	}
	if r.IntN(5) == 0 {
		_, f.rerr = f.to.WriteTo(writerFunc(func(p []byte) (n int, err error) {
			for n < len(p) {
				m, _ := check(p[n:min(len(p), n+len(exp))])
				n += m
			}
			return n, nil
		}))
		f.eof = f.rerr == nil
		return
	}
	slow := r.IntN(4) == 0
	for {
		if r.IntN(10) == 0 {
			f.to.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(2000)) * time.Microsecond))
		}
		n, err := f.to.Read(buf[:1+r.IntN(len(buf))])
		check(buf[:n])
		switch {
		case err == io.EOF:
			f.eof = true
			return
		case isTimeout(err):
			f.to.SetReadDeadline(time.Time{})
		case err != nil:
			f.rerr = err
			return
		}
		if slow && r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
