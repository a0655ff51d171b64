// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/rendezvous"
	"smcr/userstack/simfabric"
)

// programs are those of a connection, which are held.
type programs struct {
	mu    sync.Mutex
	begun time.Time // when the client's was let go
	after time.Duration
	err   error
	free  time.Time // since then it is known to have its connection
}

func (p *programs) isFree() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.free.IsZero()
}

// heldClient is the TCP connection below that of the client. Its program has the connection some time after it was let go.
type heldClient struct {
	*simfabric.TCPConn
	p *programs
}

func (c heldClient) LetGo() (bool, error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	now := time.Now()
	if c.p.begun.IsZero() {
		c.p.begun = now
	}
	if c.p.err != nil || now.Sub(c.p.begun) < c.p.after {
		return false, c.p.err
	}
	if c.p.free.IsZero() {
		c.p.free = now
	}
	return true, nil
}

// heldServer is that of the server. Its peer does not acknowledge before it has let its program go.
type heldServer struct {
	*simfabric.TCPConn
	p *programs
}

func (c heldServer) Probe() (unacked bool, first []byte) {
	if !c.p.isFree() {
		return true, nil
	}
	return c.TCPConn.Probe()
}

// noDevice has the netdev of a host be served by no RoCE device.
func noDevice(t *testing.T, s *Stack) {
	t.Helper()
	for _, p := range []nl.PNET{{ID: "ONE", NetDev: "eth0"}, {ID: "OTHER", IBDev: "sim-eth0", IBPort: 1}} {
		if err := s.Control().AddPNET(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLetGo: a client's program has its connection before the server's is let go, whatever becomes of the connection, and however long
// it takes. If it does not get it, the server's is not let go either.
func TestLetGo(t *testing.T) {
	version1 := func(c *Config) { c.NoVersion2 = true }
	errGone := syscall.ENETDOWN
	for _, test := range []struct {
		name   string
		config func(*Config)
		before func(t *testing.T, b *bed)
		after  time.Duration
		err    error
		want   func(*DeclineError, error) bool // of both sides
	}{
		{name: "first contact, version 1", config: version1, want: overSMC},
		{name: "first contact, version 2", want: overSMC},
		{name: "first contact, slow", after: 700 * time.Millisecond, want: overSMC},
		{name: "subsequent contact, version 1", config: version1, before: haveGroup, want: overSMC},
		{name: "subsequent contact, version 2", before: haveGroup, want: overSMC},
		{name: "subsequent contact, slow", before: haveGroup, after: 700 * time.Millisecond, want: overSMC},
		{name: "the server declines", before: func(t *testing.T, b *bed) { noDevice(t, b.server) }, want: overTCP},
		{name: "the server declines, slow", before: func(t *testing.T, b *bed) { noDevice(t, b.server) }, after: 2 * time.Second, want: overTCP},
		{name: "the client declines", before: func(t *testing.T, b *bed) { noDevice(t, b.client) }, want: overTCP},
		{name: "the client declines, slow", before: func(t *testing.T, b *bed) { noDevice(t, b.client) }, after: 2 * time.Second, want: overTCP},
		{name: "never", before: haveGroup, after: time.Hour, want: neither},
		{name: "never, declined", before: func(t *testing.T, b *bed) { noDevice(t, b.server) }, after: time.Hour, want: neither},
		{name: "not possible", before: haveGroup, err: errGone, want: neither},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{client: test.config, server: test.config})
				if test.before != nil {
					test.before(t, b)
				}
				p := &programs{after: test.after, err: test.err}
				ct, st := b.tcp()
				ends := make(chan struct{}, 2)
				end := func(s *Stack, role smc.Role, tcp TCPConn, tc *simfabric.TCPConn) {
					s.attend(t.Context(), tcp, role, rendezvous.Config{Held: true}, func(c *Conn, err error) {
						d, _ := errors.AsType[*DeclineError](err)
						if !test.want(d, err) {
							t.Errorf("%v: %v", role, err)
						}
						if free := p.isFree(); (err == nil || d != nil) && !free {
							t.Errorf("the program of the %v is let go before that of the client", role)
						}
						if role == smc.Client && test.after > rendezvous.LetGoWait && !errors.Is(err, ErrNotLetGo) {
							t.Errorf("the client's error is %v", err)
						}
						go func() {
							time.Sleep(10 * time.Millisecond) // the peer has all that was said
							if err == nil {
								_ = c.Abort()
							} else {
								_ = tc.SetLinger(0)
								_ = tc.Close()
							}
							ends <- struct{}{}
						}()
					})
				}
				end(b.server, smc.Server, heldServer{st, p}, st)
				end(b.client, smc.Client, heldClient{ct, p}, ct)
				<-ends
				<-ends
			})
		})
	}
}

func haveGroup(t *testing.T, b *bed) {
	t.Helper()
	c, s := b.connect()
	b.finish(c, s)
}

func overSMC(_ *DeclineError, err error) bool      { return err == nil }
func overTCP(d *DeclineError, _ error) bool        { return d != nil }
func neither(d *DeclineError, err error) (ok bool) { return err != nil && d == nil }
