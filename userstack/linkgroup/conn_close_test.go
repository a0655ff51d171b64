// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestStates walks through the table above the close operations, line by
// line. A step is an event, the message sent, and the state after it:
//
//	shut close abort     the application
//	data much            the application sends, nothing is completed
//	D C A                the peer's message with that flag
//	took                 the peer has read everything
//	in                   the peer's message with a byte of data
//	ok                   completion of all that was sent
//	60s ...              time passes
//	test                 the peer answers TEST LINK
//	fin rst              the TCP connection ends
//	reuse delrkey fail   the peer gives its RMB element or RMB to others; the link fails
//	another otherfin     there is another connection; its TCP connection ends
func TestStates(t *testing.T) {
	tests := []struct {
		name  string
		steps string
		end   error // of ActConnClosed; errNone: not closed
	}{
		{"3A shutdown", "shut>cdc+D:PEERCLOSEWAIT1", errNone},
		{"3A shutdown with data", "data>cdc:ACTIVE shut>:ACTIVE ok>cdc+D:PEERCLOSEWAIT1", errNone},
		{"3A close", "close>cdc+C:PEERCLOSEWAIT1", errNone},
		{"3A close with data", "data>cdc:ACTIVE close>:ACTIVE ok>cdc+C:PEERCLOSEWAIT1", errNone},
		{"3A close with unread data", "in>:ACTIVE close>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrAborted},
		{"3A close waits for the window", "full>cdc+B:ACTIVE ok>:ACTIVE close>:ACTIVE took>cdc:ACTIVE ok>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:CLOSED", nil},
		{"3A shutdown, then close, with data", "data>cdc:ACTIVE shut>:ACTIVE close>:ACTIVE ok>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:CLOSED", nil},
		{"3A close with data, peer closes meanwhile", "data>cdc:ACTIVE close>:ACTIVE C>:APPCLOSEWAIT1 ok>cdc+C:APPCLOSEWAIT1 ok>:CLOSED", nil},
		{"3A close with data unsent, peer closes", "full>cdc+B:ACTIVE ok>:ACTIVE close>:ACTIVE C>cdc+A:PEERABORTWAIT ok>:CLOSED", conn.ErrReset},
		{"4.8.1 data is taken late", "full>cdc+B:ACTIVE ok>:ACTIVE close>:ACTIVE 59s>:ACTIVE took>cdc:ACTIVE 59s>:ACTIVE ok>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:CLOSED", nil},
		{"3B", "shut>cdc+D:PEERCLOSEWAIT1 D>:PEERCLOSEWAIT2 ok>:PEERCLOSEWAIT2 close>cdc+D+C:PEERCLOSEWAIT2 ok>:PEERCLOSEWAIT2 C>:CLOSED", nil},
		{"3C close", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:CLOSED", nil},
		{"3C simultaneous close", "close>cdc+C:PEERCLOSEWAIT1 C>:PEERCLOSEWAIT1 ok>:CLOSED", nil},
		{"3C after 3B", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 D>:PEERCLOSEWAIT2 C>:CLOSED", nil},
		{"3C shutdown, then close", "shut>cdc+D:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 close>cdc+D+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:CLOSED", nil},
		{"3D", "shut>cdc+D:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 C>:APPFINCLOSEWAIT close>cdc+D+C:APPFINCLOSEWAIT ok>:CLOSED", nil},
		{"3D after 3B", "shut>cdc+D:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 D>:PEERCLOSEWAIT2 C>:APPFINCLOSEWAIT close>cdc+D+C:APPFINCLOSEWAIT ok>:CLOSED", nil},
		{"4A done", "D>:APPCLOSEWAIT1", errNone},
		{"4A closed", "C>:APPCLOSEWAIT1", errNone},
		{"4A closed with data pending", "full>cdc+B:ACTIVE C>cdc+A:PEERABORTWAIT ok>:CLOSED", conn.ErrReset},
		{"4A data received, then done", "in>:ACTIVE D>:APPCLOSEWAIT1", errNone},
		{"4B", "D>:APPCLOSEWAIT1 data>cdc:APPCLOSEWAIT1 ok>:APPCLOSEWAIT1 shut>cdc+D:APPCLOSEWAIT2 ok>:APPCLOSEWAIT2 C>:APPCLOSEWAIT2 close>cdc+D+C:APPCLOSEWAIT2 ok>:CLOSED", nil},
		{"4C after C", "C>:APPCLOSEWAIT1 close>cdc+C:APPCLOSEWAIT1 ok>:CLOSED", nil},
		{"4C after D", "D>:APPCLOSEWAIT1 close>cdc+C:PEERFINCLOSEWAIT ok>:PEERFINCLOSEWAIT C>:CLOSED", nil},
		{"4C after 4B", "D>:APPCLOSEWAIT1 shut>cdc+D:APPCLOSEWAIT2 ok>:APPCLOSEWAIT2 close>cdc+D+C:PEERFINCLOSEWAIT ok>:PEERFINCLOSEWAIT C>:CLOSED", nil},
		{"4D before completion", "D>:APPCLOSEWAIT1 close>cdc+C:PEERFINCLOSEWAIT C>:PEERFINCLOSEWAIT ok>:CLOSED", nil},
		{"4.8.1 stranded", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 59s>:PEERCLOSEWAIT1 2s>cdc+C+A:PEERABORTWAIT ok>:PEERABORTWAIT 8s>:PEERABORTWAIT 2s>:CLOSED", conn.ErrCloseTimeout},
		{"4.8.1 stranded, peer answers abort", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 61s>cdc+C+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrCloseTimeout},
		{"4.8.1 data is never taken", "full>cdc+B:ACTIVE ok>:ACTIVE close>:ACTIVE 61s>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT 11s>:CLOSED", conn.ErrCloseTimeout},
		{"shutdown waits for ever", "shut>cdc+D:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 20s>:PEERCLOSEWAIT1", errNone},
		{"1A, 1B", "abort>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrAborted},
		{"1A with data outstanding", "data>cdc:ACTIVE much>cdc:ACTIVE abort>:PEERABORTWAIT ok>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrAborted},
		{"1B closed instead", "abort>cdc+A:PEERABORTWAIT C>:PEERABORTWAIT ok>:CLOSED", conn.ErrAborted},
		{"1B other messages are ignored", "abort>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT in>:PEERABORTWAIT D>:PEERABORTWAIT A>:CLOSED", conn.ErrAborted},
		{"1B timer", "abort>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT 11s>:CLOSED", conn.ErrAborted},
		{"1 both abort", "abort>cdc+A:PEERABORTWAIT A>:PEERABORTWAIT ok>:CLOSED", conn.ErrAborted},
		{"2A, 2B", "A>cdc+A:PROCESSABORT ok>:CLOSED", conn.ErrReset},
		{"2 with data both ways", "in>:ACTIVE data>cdc:ACTIVE A>cdc+A:PROCESSABORT ok>:PROCESSABORT read>:CLOSED", conn.ErrReset},
		{"2 with data that is not read", "in>:ACTIVE A>cdc+A:PROCESSABORT ok>:PROCESSABORT 20s>:PROCESSABORT close>:CLOSED", conn.ErrReset},
		{"2 never delivered", "A>cdc+A:PROCESSABORT 11s>:CLOSED", conn.ErrReset},
		{"2 after our shutdown", "shut>cdc+D:PEERCLOSEWAIT1 A>cdc+D+A:PROCESSABORT ok>:CLOSED", conn.ErrReset},
		{"2 after our close", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 A>:CLOSED", conn.ErrReset},
		{"2 before our close is delivered", "close>cdc+C:PEERCLOSEWAIT1 A>:PROCESSABORT ok>:CLOSED", conn.ErrReset},
		{"abort after the peer's close", "C>:APPCLOSEWAIT1 abort>cdc+A:PEERABORTWAIT ok>:CLOSED", conn.ErrAborted},
		{"bad message", "bad>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrProtocol},
		{"overlay", "smash>:ACTIVE in>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrProtocol},
		{"TCP FIN, never explained", "fin>:ACTIVE 1s>test-link:ACTIVE 1s>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrReset},
		{"TCP FIN, never explained, peer alive", "fin>:ACTIVE 1s>test-link:ACTIVE test>:ACTIVE 8s>:ACTIVE 2s>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT 11s>:CLOSED", conn.ErrReset},
		{"TCP FIN, never explained, acknowledged", "fin>:ACTIVE 1s>test-link:ACTIVE 500ms>:ACTIVE ok>:ACTIVE 1s>:ACTIVE 2s>:CLOSED", conn.ErrReset},
		{"TCP FIN, explained behind other data", "fin>:ACTIVE 1s>test-link:ACTIVE 500ms>:ACTIVE ok>:ACTIVE 1s>:ACTIVE D>:APPCLOSEWAIT1 test>:APPCLOSEWAIT1 20s>:APPCLOSEWAIT1", errNone},
		{"TCP FIN, explained late", "fin>:ACTIVE 1s>test-link:ACTIVE test>:ACTIVE 5s>:ACTIVE D>:APPCLOSEWAIT1 20s>:APPCLOSEWAIT1", errNone},
		{"TCP RST, never explained, peer alive", "rst>:ACTIVE 1s>:ACTIVE in>:ACTIVE 2s>cdc+A:PEERABORTWAIT A>:PEERABORTWAIT read>:PEERABORTWAIT ok>:CLOSED", conn.ErrReset},
		{"TCP FIN, peer does not answer, another connection has TCP", "another>:ACTIVE fin>:ACTIVE 1s>test-link:ACTIVE 1300ms>:ACTIVE D>:APPCLOSEWAIT1 test>:APPCLOSEWAIT1 20s>:APPCLOSEWAIT1", errNone},
		{"TCP FIN, peer does not answer, the other one's TCP ends too", "another>:ACTIVE fin>:ACTIVE 100ms>:ACTIVE otherfin>:ACTIVE 900ms>test-link:ACTIVE 1s>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrReset},
		{"TCP FIN with D", "fin>:ACTIVE D>:APPCLOSEWAIT1 20s>:APPCLOSEWAIT1", errNone},
		{"TCP RST with D", "D>:APPCLOSEWAIT1 rst>:APPCLOSEWAIT1 3s>cdc+A:PEERABORTWAIT ok>:PEERABORTWAIT A>:CLOSED", conn.ErrReset},
		{"TCP RST with C", "rst>:ACTIVE C>:APPCLOSEWAIT1 20s>:APPCLOSEWAIT1", errNone},
		{"4.8.3 link lost", "fail>:CLOSED", conn.ErrReset},
		{"4.8.3 link lost while closing", "close>cdc+C:PEERCLOSEWAIT1 fail>:CLOSED", conn.ErrReset},
		{"4.8.3 link lost while aborting", "abort>cdc+A:PEERABORTWAIT fail>:CLOSED", conn.ErrAborted},
		{"4.4.2 element reused", "reuse>:CLOSED", conn.ErrReset},
		{"4.4.2 element reused after our close", "close>cdc+C:PEERCLOSEWAIT1 ok>:PEERCLOSEWAIT1 reuse>:CLOSED", nil},
		{"4.4.2 element reused before our last message counts as delivered", "C>:APPCLOSEWAIT1 close>cdc+C:APPCLOSEWAIT1 reuse>:APPCLOSEWAIT1 ok>:CLOSED", nil},
		{"4.4.2 element reused before our abort counts as delivered", "A>cdc+A:PROCESSABORT reuse>:PROCESSABORT ok>:CLOSED", conn.ErrReset},
		{"RKey deleted", "delrkey>re:delete-rkey(1):CLOSED", conn.ErrReset},
		{"RKey deleted after our close", "close>cdc+C:PEERCLOSEWAIT1 delrkey>re:delete-rkey(1):CLOSED", nil},
	}
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/%s", role, tt.name), func(t *testing.T) {
				var log strings.Builder
				r := newRig(t, role, func(c *Config) {
					c.EyeCatcher, c.Timers.TestLink = tt.name == "overlay", 0
					c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
				})
				if tt.name == "overlay" {
					r.openEye()
				} else {
					r.open()
				}
				for _, step := range strings.Fields(tt.steps) {
					ev, rest, _ := strings.Cut(step, ">")
					i := strings.LastIndexByte(rest, ':')
					msg, state := rest[:i], rest[i+1:]
					r.do(ev)
					if got := r.sent(); got != msg {
						t.Fatalf("%s: sent %q, want %q", step, got, msg)
					}
					if got := r.c.State().String(); got != state {
						t.Fatalf("%s: state %s", step, got)
					}
				}
				// What is wrong on this host is logged as an error, what a peer does is not.
				if logged := strings.Contains(log.String(), "RMB element was overwritten"); logged != (tt.name == "overlay") || !logged && log.Len() > 0 {
					t.Errorf("log: %q", log.String())
				}
				if tt.end == errNone {
					if len(r.close) != 0 {
						t.Fatalf("closed: %v", r.close)
					}
					return
				}
				if len(r.close) != 1 || !errors.Is(r.close[0], tt.end) || tt.end == nil && r.close[0] != nil {
					t.Fatalf("closed with %v, want %v", r.close, tt.end)
				}
				if tt.end != nil && (r.c.ReadErr() == nil || r.c.WriteErr() == nil) {
					t.Errorf("no error for the application: %v, %v", r.c.ReadErr(), r.c.WriteErr())
				}
				r.c.Release()
				r.do("ok")
				if len(r.h.chunks) != 0 {
					t.Error("send memory is not released")
				}
			})
		}
	}
}

var errNone = errors.New("not closed")

func (r *rig) openEye() {
	r.begin()
	m := r.confirmLink(r.g.cfg.Role == smc.Server, r.link)
	m.NoEyecatcher = false
	r.recv(r.link, m)
	if r.g.cfg.Role == smc.Server {
		r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
	} else {
		r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3})
	}
	r.done()
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		r.t.Fatal(err)
	}
	r.acts = nil
}

func (r *rig) do(ev string) {
	now := r.s.now
	switch ev {
	case "shut":
		r.c.CloseWrite(now)
	case "close":
		r.c.Close(now)
	case "abort":
		r.c.Abort(now)
	case "data":
		r.send(10)
	case "much":
		r.send(3000)
	case "full":
		// The peer's element is full and there is more.
		for left := 16384 - 10; left > 0; left -= 4096 {
			r.send(min(left, 4096))
			r.done()
		}
		r.acts = nil
		r.send(20)
	case "took":
		r.got(int(r.c.Positions().Written - r.c.Positions().PeerRead))
	case "D", "C", "A":
		m := r.cdc()
		m.State = map[string]wire.StateFlags{"D": wire.ConnSendingDone, "C": wire.ConnClosed, "A": wire.ConnAbnormalClose}[ev]
		r.recv(r.link, m)
	case "in":
		r.give(1, 0)
	case "read":
		a, b := r.c.RecvData()
		r.c.Consumed(now, len(a)+len(b))
	case "bad":
		m := r.cdc()
		m.Prod.Count = 1 << 20
		r.recv(r.link, m)
	case "smash":
		r.c.element()[2]++
	case "ok":
		r.take()
		if t := r.tok[r.link]; t != 0 {
			delete(r.tok, r.link)
			r.g.Sent(now, r.link, t)
		}
	case "test": // the answer
		r.recv(r.link, wire.TestLink{Reply: true, UserData: r.link.testData})
	case "fin", "rst":
		r.c.TCPClosed(now, ev == "rst")
	case "another":
		o, err := r.g.NewConn(now, 0, 100)
		if err != nil {
			r.t.Fatal(err)
		}
		p := peerRMB
		p.Token++
		p.Index++
		if err := o.Attach(now, p); err != nil {
			r.t.Fatal(err)
		}
		r.other = o
	case "otherfin":
		r.other.TCPClosed(now, false)
	case "fail":
		r.g.LinkFailed(now, r.link, errors.New("cable"))
	case "reuse":
		o, err := r.g.NewConn(now, 0, 100)
		if err != nil {
			r.t.Fatal(err)
		}
		p := peerRMB
		p.Token++
		if err := o.Attach(now, p); err != nil {
			r.t.Fatal(err)
		}
	case "delrkey":
		m := wire.DeleteRKey{Count: 1}
		m.RKeys[0] = peerRMB.RKey
		r.recv(r.link, m)
	default:
		d, err := time.ParseDuration(ev)
		if err != nil {
			r.t.Fatal(err)
		}
		r.wait(d)
	}
	r.take()
}

// TestErrors checks what the application sees.
func TestErrors(t *testing.T) {
	tests := []struct {
		name, steps string
		read, write error
		data        int // bytes that can be read
	}{
		{"open", "", nil, nil, 0},
		{"open, data left", "in", nil, nil, 1},
		{"peer done", "D", io.EOF, nil, 0},
		{"peer done, data left", "in D", nil, nil, 1},
		{"peer closed", "C", io.EOF, conn.ErrPeerClosed, 0},
		{"peer closed, data left", "in C", nil, conn.ErrPeerClosed, 1},
		{"shut", "shut", nil, conn.ErrWriteClosed, 0},
		{"shut, data left", "in shut", nil, conn.ErrWriteClosed, 1},
		{"shut, peer done", "shut D", io.EOF, conn.ErrWriteClosed, 0},
		{"closed", "close", conn.ErrClosed, conn.ErrClosed, 0},
		{"closed, data left", "in close", conn.ErrAborted, conn.ErrAborted, 0},
		{"aborted", "abort", conn.ErrAborted, conn.ErrAborted, 0},
		{"aborted, data left", "in abort", conn.ErrAborted, conn.ErrAborted, 0},
		{"reset", "A", conn.ErrReset, conn.ErrReset, 0},
		{"reset, data left", "in A", nil, conn.ErrReset, 1},
		{"reset, data read", "in A read", conn.ErrReset, conn.ErrReset, 0},
		{"link lost", "fail", conn.ErrReset, conn.ErrReset, 0},
		{"link lost, data left", "in fail", conn.ErrReset, conn.ErrReset, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Server, nil)
			r.open()
			for _, ev := range strings.Fields(tt.steps) {
				r.do(ev)
			}
			if err := r.c.ReadErr(); !errors.Is(err, tt.read) || tt.read == nil && err != nil {
				t.Errorf("read: %v, want %v", err, tt.read)
			}
			if err := r.c.WriteErr(); !errors.Is(err, tt.write) || tt.write == nil && err != nil {
				t.Errorf("write: %v, want %v", err, tt.write)
			}
			if a, b := r.c.RecvData(); len(a) != tt.data || len(b) != 0 {
				t.Errorf("%d bytes to read, want %d", len(a)+len(b), tt.data)
			}
			if a, _, _ := r.c.SendSpace(1, 1); (len(a) > 0) != (tt.write == nil) {
				t.Errorf("%d bytes of room", len(a))
			}
		})
	}
}

// TestLostElement: an element whose peer never answered the abort is not
// used again, and a group with many of them takes no more connections of its owner.
func TestLostElement(t *testing.T) {
	r := newRig(t, smc.Server, nil)
	r.open()
	m, i := r.c.rmb, r.c.elem
	r.do("abort")
	r.do("ok")
	r.do("11s")
	r.c.Release()
	if m.inUse != 0 || !m.idleAt.IsZero() {
		t.Errorf("an RMB that the peer may still write to is to be deleted at %s", m.idleAt)
	}
	for range len(m.elems) - 1 {
		c, err := r.g.NewConn(r.s.now, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		if c.rmb == m && c.elem == i {
			t.Fatal("element is used again")
		}
	}
	r.g.rmbs.withdrawn = map[uint32]int{0: 33}
	if _, err := r.g.NewConn(r.s.now, 0, 100); !errors.Is(err, ErrFull) {
		t.Errorf("NewConn: %v", err)
	}
	if _, err := r.g.NewConnOf(r.s.now, 1, 0, 100); err != nil {
		t.Errorf("connection of another owner: %v", err)
	}
	r.g.rmbs.withdrawnAll = 8*33 + 1
	if r.g.CanAccept() {
		t.Error("a group with too many withdrawn elements takes connections")
	}
}

// TestOwners: connections of two owners share no RMB, also after one has given its
// elements back, and an owner whose elements all rest takes none from the other.
func TestOwners(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 2 })
	r.open()
	used := map[*rmb]uint32{r.c.rmb: 0}
	try := func(owner uint32) (*Conn, error) {
		c, err := r.g.NewConnOf(r.s.now, owner, 0, 100)
		if err == nil && c.rmb.state == rmbNew {
			r.take()
			r.recv(r.link, wire.ConfirmRKey{Reply: true, This: c.rmb.at[0].RToken})
		}
		return c, err
	}
	conn := func(owner uint32) *Conn {
		t.Helper()
		c, err := try(owner)
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := used[c.rmb]; ok && o != owner {
			t.Errorf("owner %d has an RMB of owner %d", owner, o)
		}
		used[c.rmb] = owner
		return c
	}
	for _, owner := range []uint32{1, 2, 1, 0, 2, 1} {
		conn(owner)
	}
	if len(used) != 4 { // three of owner 1 need two
		t.Errorf("%d RMBs", len(used))
	}
	given := conn(2)
	given.Cancel(r.s.now)
	r.wait(11 * time.Second)
	if c := conn(1); c.rmb == given.rmb {
		t.Error("owner 1 has what owner 2 gave back")
	}
	var err error
	for n := 0; err == nil; n++ {
		var c *Conn
		if c, err = try(3); err == nil {
			c.Cancel(r.s.now)
		}
		if n > 2*maxRMBs {
			t.Fatal("one owner takes all RMBs")
		}
	}
	if !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	conn(4)
	r.wait(11 * time.Second)
	conn(3)
}

// TestCancel: the element of a canceled connection rests, then is used
// again, and nothing is said about it.
func TestCancel(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { c.RMBEsPerRMB = 2 })
	r.open()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if c.rmb != r.c.rmb {
		t.Fatal("not in the shared RMB")
	}
	c.Cancel(r.s.now)
	c.Cancel(r.s.now)
	if got := strings.Join(r.kinds(), " "); got != "conn-ready" {
		t.Errorf("actions: %s", got)
	}
	d, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if d.rmb == c.rmb {
		t.Error("element is used at once")
	}
	r.recv(r.link, wire.ConfirmRKey{Reply: true, This: d.rmb.at[0].RToken})
	d.Cancel(r.s.now)
	r.wait(11 * time.Second)
	if d, _ = r.g.NewConn(r.s.now, 0, 100); d.rmb != r.c.rmb {
		t.Error("element is not used again")
	}
	if len(r.h.chunks) != 0 {
		t.Errorf("idle connections have %d chunks of send memory", len(r.h.chunks))
	}
}
