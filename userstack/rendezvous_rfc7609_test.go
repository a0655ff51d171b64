// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/driver"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// wordsOf records the messages on the wire for which keep returns true, one word for
// each: "client:PROPOSAL", "server:CONFIRM RKEY", "client:re:CONFIRM RKEY", "server:C"
// (the CDC message with this flag), "client:FIN", "client:RST".
type wordsOf struct {
	mu   sync.Mutex
	list []string
	keep func(word string) bool
	tcp  map[simfabric.Place][]byte // incomplete CLC messages
}

func (w *wordsOf) observe(e *simfabric.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var word string
	switch {
	case e.Kind == simfabric.EventTCP && e.Note != "":
		word = e.Note
	case e.Kind == simfabric.EventTCP:
		if w.tcp == nil {
			w.tcp = map[simfabric.Place][]byte{}
		}
		raw := append(w.tcp[e.From], e.Data...)
		if m, err := wire.ParseCLC(raw); err == nil {
			word, raw = m.CLCType().String(), nil
		}
		w.tcp[e.From] = raw
	case e.Kind != simfabric.EventSend:
	case wire.IsCDC(e.Data):
		switch m, _ := wire.ParseCDC(e.Data); {
		case m.State&wire.ConnAbnormalClose != 0:
			word = "A"
		case m.State&wire.ConnClosed != 0:
			word = "C"
		}
	default:
		if m, err := wire.ParseLLC(e.Data); err == nil {
			word = m.LLCType().String()
			if m.IsReply() {
				word = "re:" + word
			}
		}
	}
	if word != "" && (w.keep == nil || w.keep(word)) {
		w.list = append(w.list, e.From.Host+":"+word)
	}
}

// take returns the words since the last call.
func (w *wordsOf) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// TestNewRMBBeforeCLC: each side announces an RMB by CONFIRM RKEY, and waits for the
// answer, before its CLC message names the RMB (RFC 7609, sections 3.5.2.1, 3.5.2.2 and
// 3.5.5.2.1).
func TestNewRMBBeforeCLC(t *testing.T) {
	bubble(t, func(t *testing.T) {
		words := &wordsOf{}
		b := newBed(t, bedConfig{fabric: simfabric.Config{Observe: words.observe}})
		var pairs [][2]*Conn
		for i := range 17 {
			words.take()
			c, s := b.connect()
			pairs = append(pairs, [2]*Conn{c, s})
			want := "client:PROPOSAL server:ACCEPT client:CONFIRM"
			if i == 16 { // an RMB has 16 elements
				want = "client:PROPOSAL server:CONFIRM RKEY client:re:CONFIRM RKEY server:ACCEPT client:CONFIRM RKEY server:re:CONFIRM RKEY client:CONFIRM"
			}
			if got := strings.Join(words.take(), " "); i > 0 && got != want {
				t.Errorf("connection %d: %s\nwant %s", i+1, got, want)
			}
		}
		for _, p := range pairs {
			b.finish(p[0], p[1])
		}
	})
}

// TestAcceptOfKnownLink: without the first contact flag, ACCEPT must name a link that the
// client has, by peer ID, GID, MAC and queue pair number. Otherwise the client is out of
// sync (RFC 7609, section 3.5.2.2 and appendix C.4). CONFIRM is the last message of the
// client: its program continues at once (section 3.5.2.4).
func TestAcceptOfKnownLink(t *testing.T) {
	for name, edit := range map[string]func(*wire.Endpoint){
		"known":      func(*wire.Endpoint) {},
		"peer ID":    func(e *wire.Endpoint) { e.PeerID[0]++ },
		"GID":        func(e *wire.Endpoint) { e.GID[15]++ },
		"MAC":        func(e *wire.Endpoint) { e.MAC[5]++ },
		"queue pair": func(e *wire.Endpoint) { e.QPN++ },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				var named linkgroup.ConnParams
				s.d.View(func(core *linkgroup.Conn) { named = core.Local() })
				known := name == "known"
				ct, st := b.tcp()
				done := make(chan struct{})
				go func() {
					defer close(done)
					p := scripted{t, st}
					as[wire.Proposal](p)
					named.Token, named.Index = named.Token+1, named.Index+1
					e := endpoint(b.server.peerIDNow(), named)
					edit(&e)
					p.send(wire.Accept{Endpoint: e})
					if known {
						if m := as[wire.Confirm](p); m.FirstContact {
							t.Error("CONFIRM of a first contact")
						}
					} else if d := as[wire.Decline](p); d.Diagnosis != smc.DiagSync || !d.OutOfSync {
						t.Errorf("declined with %+v", d)
					}
				}()
				c2, err := b.client.Client(t.Context(), ct)
				<-done
				if known {
					if err != nil {
						t.Fatal(err)
					}
					if c2.group() != c.group() {
						t.Error("not on the known link group")
					}
					c2.SetLinger(0)
					c2.Close()
				} else {
					wantDecline(t, "client", err, smc.DiagSync, false)
				}
				ct.Close()
				st.Close()
				if !known {
					b.exchange(c, s, pattern(1, 1000)) // the group still works
				}
				b.finish(c, s)
			})
		})
	}
}

// unconfirmed is a connection whose CONFIRM the test has kept.
type unconfirmed struct {
	client    *Conn
	confirm   <-chan wire.Confirm // the CONFIRM of the client
	near, far *simfabric.TCPConn  // the test's ends of the connections to the client and the server
	server    <-chan servedConn
}

// servedConn is the result of the server's side of a rendezvous.
type servedConn struct {
	c   *Conn
	err error
}

// unconfirmed makes a connection and does not pass its CONFIRM to the server.
func (b *bed) unconfirmed(t *testing.T) *unconfirmed {
	t.Helper()
	ct, near := b.tcp() // the test is between the two ends
	far, st := b.tcp()
	server := make(chan servedConn, 1)
	go func() {
		x, err := b.server.Server(context.Background(), st)
		server <- servedConn{x, err}
	}()
	confirm := make(chan wire.Confirm, 1)
	go func() {
		cl, sv := scripted{t, near}, scripted{t, far}
		sv.send(as[wire.Proposal](cl))
		cl.send(as[wire.Accept](sv))
		confirm <- as[wire.Confirm](cl)
	}()
	client, err := b.client.Client(t.Context(), ct)
	if err != nil {
		t.Fatal(err)
	}
	return &unconfirmed{client, confirm, near, far, server}
}

// TestDataBeforeConfirm: data of the client may arrive before CONFIRM is processed. The
// server's program reads it afterwards (RFC 7609, section 3.5.2.4).
func TestDataBeforeConfirm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		u := b.unconfirmed(t)
		c2 := u.client
		if _, err := c2.Write([]byte("early")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
		select {
		case x := <-u.server:
			t.Fatalf("server without CONFIRM: %+v", x)
		default:
		}
		scripted{t, u.far}.send(<-u.confirm)
		x := <-u.server
		if x.err != nil {
			t.Fatal(x.err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(x.c, got); err != nil || string(got) != "early" {
			t.Errorf("read %q, %v", got, err)
		}
		b.exchange(x.c, c2, pattern(1, 1000))
		b.finish(c2, x.c)
		u.near.Close()
		u.far.Close()
		b.finish(c, s)
	})
}

// TestProtocolErrorsDuringLLC: any message except DECLINE ends the TCP connection, also
// while the first link is confirmed. There is no fallback (RFC 7609, appendix C.6).
func TestProtocolErrorsDuringLLC(t *testing.T) {
	half, err := wire.Decline{PeerID: peerID, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, say := range map[string]func(p scripted){
		"data":       func(p scripted) { p.raw([]byte("GET / HTTP/1.0\r\n\r\n")) },
		"ACCEPT":     func(p scripted) { p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)}) },
		"half":       func(p scripted) { p.raw(half[:20]); p.tc.CloseWrite() },
		"wrong tail": func(p scripted) { p.raw(append(slices.Clone(half[:24]), "tail"...)) },
	} {
		for _, who := range []string{"client", "server"} {
			t.Run(who+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{})
					ct, st := b.tcp()
					x, run := ct, b.client.Client
					p := scripted{t, st}
					if who == "server" {
						x, run, p.tc = st, b.server.Server, ct
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						if who == "client" {
							as[wire.Proposal](p)
							p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
							as[wire.Confirm](p)
						} else {
							p.send(wire.Proposal{PeerID: peerID, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, IPv4: prefix(1, 0).Masked()})
							as[wire.Accept](p)
							p.send(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
						}
						say(p)
					}()
					_, err := run(t.Context(), x)
					<-done
					wantBroken(t, err, nil)
					if !errors.Is(err, rendezvous.ErrProtocol) {
						t.Errorf("%v, want a protocol error", err)
					}
					x.SetLinger(0)
					x.Close()
					if n, err := p.tc.Read(make([]byte, 1)); n > 0 {
						t.Errorf("something was sent after a protocol error: %v", err)
					}
					p.tc.Close()
					time.Sleep(10 * time.Second)
				})
			})
		}
	}
}

// TestReservedValuesInConfirm: a reserved value in CONFIRM is no protocol error: the
// server declines (RFC 7609, appendix C.6).
func TestReservedValuesInConfirm(t *testing.T) {
	for name, edit := range map[string]func(*wire.Endpoint){
		"MTU 0":     func(e *wire.Endpoint) { e.MTU = 0 },
		"MTU 6":     func(e *wire.Endpoint) { e.MTU = 6 },
		"element 0": func(e *wire.Endpoint) { e.RMBEIndex = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				ct, st := b.tcp()
				done := make(chan struct{})
				go func() {
					defer close(done)
					p := scripted{t, ct}
					p.send(wire.Proposal{PeerID: peerID, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, IPv4: prefix(1, 0).Masked()})
					as[wire.Accept](p)
					e := endpointOf(1)
					edit(&e)
					p.send(wire.Confirm{FirstContact: true, Endpoint: e})
					as[wire.Decline](p)
				}()
				_, err := b.server.Server(t.Context(), st)
				<-done
				wantDecline(t, "server", err, smc.DiagRToken, false)
				b.stillTCP(ct, st)
			})
		})
	}
}

// TestParallelGroupsShareNoRMB: link groups of the same peers have separate RMBs (RFC
// 7609, section 3.5.3).
func TestParallelGroupsShareNoRMB(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const elem, rmb = 64 << 10, 16 * 64 << 10
		few := func(c *Config) { c.MaxConns = 2 }
		b := newBed(t, bedConfig{client: few, server: few})
		base := map[*driver.Group]uintptr{}
		var pairs [][2]*Conn
		for range 6 {
			c, s := b.connect()
			pairs = append(pairs, [2]*Conn{c, s})
			for _, x := range [][2]*Conn{{c, s}, {s, c}} {
				if _, err := x[0].Write([]byte{1}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
				x[1].d.View(func(core *linkgroup.Conn) {
					data, _ := core.RecvData()
					at := uintptr(unsafe.Pointer(&data[0])) - elem*uintptr(core.Local().Index-1)
					if was, ok := base[x[1].group()]; ok && was != at {
						t.Errorf("two RMBs for two connections")
					}
					base[x[1].group()] = at
				})
				if err := readByte(x[1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(base) != 6 {
			t.Errorf("%d link groups, want 3 on each side", len(base))
		}
		for g, x := range base {
			for h, y := range base {
				if g != h && x < y+rmb && y < x+rmb {
					t.Errorf("%s %s and %s %s share memory", g.Role(), g.Name(), h.Role(), h.Name())
				}
			}
		}
		for _, p := range pairs {
			b.finish(p[0], p[1])
		}
	})
}

// TestStackCloseTellsPeer: a stack that is closed ends its link groups by DELETE LINK,
// and the peer's connections end at once, by RST (RFC 7609, sections 3.5.4 and 4.8.3).
func TestStackCloseTellsPeer(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				words := &wordsOf{keep: func(w string) bool { return w == "DELETE LINK" || w == "RST" || w == "FIN" }}
				b := newBed(t, bedConfig{devices: 2, fabric: simfabric.Config{Observe: words.observe}})
				c, s := b.connect()
				time.Sleep(settled)
				x, peer := b.client, s
				if who == "server" {
					x, peer = b.server, c
				}
				start := time.Now()
				if err := x.Close(); err != nil {
					t.Error(err)
				}
				if err := b.ended(peer); !errors.Is(err, conn.ErrReset) {
					t.Errorf("peer's connection ended with %v", err)
				}
				if d := time.Since(start); d > 100*time.Millisecond {
					t.Errorf("it ended after %v", d)
				}
				b.ended(c)
				b.ended(s)
				got := words.take()
				if len(got) == 0 || got[0] != who+":DELETE LINK" && !strings.HasSuffix(got[0], "RST") || !slices.Contains(got, who+":DELETE LINK") {
					t.Errorf("said %v", got)
				}
				if !slices.ContainsFunc(got, func(w string) bool { return strings.HasSuffix(w, ":RST") }) || slices.ContainsFunc(got, func(w string) bool { return strings.HasSuffix(w, ":FIN") }) {
					t.Errorf("said %v, want RST and no FIN", got)
				}
			})
		})
	}
}

// TestSMCEndsFirst: the SMC-R connection ends first, then the TCP connection: by FIN
// after both sides have sent C, by RST after an abort (RFC 7609, sections 3.5.4, 4.8.1
// and 4.8.2).
func TestSMCEndsFirst(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprint("abort ", abort), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				words := &wordsOf{keep: func(w string) bool { return len(w) == 1 || w == "RST" || w == "FIN" }}
				b := newBed(t, bedConfig{fabric: simfabric.Config{Observe: words.observe}})
				c, s := b.connect()
				if abort {
					c.Abort()
					b.ended(c)
					b.ended(s)
				} else {
					c.Close()
					time.Sleep(time.Second)
					if got := strings.Join(words.take(), " "); got != "client:C" {
						t.Errorf("the peer has not closed yet: %s", got)
					}
					s.Close()
					b.ended(c)
					b.ended(s)
				}
				time.Sleep(settled)
				got := words.take()
				want := []string{"server:C"}
				end := ":FIN"
				if abort {
					want, end = []string{"client:A", "server:A"}, ":RST"
				}
				if len(got) <= len(want) || !slices.Equal(got[:len(want)], want) {
					t.Errorf("said %v, want first %v", got, want)
				}
				for _, w := range got[min(len(want), len(got)):] {
					if !strings.HasSuffix(w, end) {
						t.Errorf("said %v, then want%s", got, end)
					}
				}
			})
		})
	}
}
