// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// newSplitBed makes a bed with two RoCE devices on each host. They are on a separate LAN
// "roce". A pnetid assigns them to the netdevs that carry TCP.
func newSplitBed(t *testing.T) *bed {
	b := &bed{t: t, w: simfabric.New(simfabric.Config{Delay: 10 * time.Microsecond, Jitter: 10 * time.Microsecond})}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	host := func(n int, name string) *simfabric.Host {
		devs := netdevs(n, 1)
		devs[0].NoRDMA = true
		for _, dev := range []string{"roce0", "roce1"} {
			devs = append(devs, simfabric.NetDev{Name: dev, LAN: "roce"})
		}
		return b.w.Host(name, devs...)
	}
	b.ch, b.sh = host(1, "client"), host(2, "server")
	b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
	for _, s := range []*Stack{b.client, b.server} {
		for _, p := range []nl.PNET{{ID: "NET", NetDev: "eth0"}, {ID: "NET", IBDev: "sim-roce0", IBPort: 1}, {ID: "NET", IBDev: "sim-roce1", IBPort: 1}} {
			if err := s.Control().AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

// TestDeadFabric: if CLC works and RoCE does not, both sides continue with TCP (RFC 7609,
// appendix C.2 and figure 42).
func TestDeadFabric(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newSplitBed(t)
		ct, st := b.tcp()
		b.w.SetLAN("roce", false)
		start := time.Now()
		_, _, cerr, serr := b.rendezvous(ct, st)
		wantDecline(t, "client", cerr, smc.DiagNoPath, true)
		wantDecline(t, "server", serr, smc.DiagNoPath, false)
		if d := time.Since(start); d > time.Second {
			t.Errorf("took %v", d)
		}
		b.stillTCP(ct, st)
	})
}

// TestFabricDiesDuringFirstContact: whenever RoCE fails, it never happens that one side
// continues with TCP and the other with SMC-R (RFC 7609, appendix C.3).
func TestFabricDiesDuringFirstContact(t *testing.T) {
	var both, none, reset int
	for cut := time.Duration(0); cut < 700*time.Microsecond; cut += 7 * time.Microsecond {
		bubble(t, func(t *testing.T) {
			b := newSplitBed(t)
			ct, st := b.tcp()
			time.AfterFunc(cut, func() { b.w.SetLAN("roce", false) })
			c, s, cerr, serr := b.rendezvous(ct, st)
			var cd, sd *DeclineError
			cTCP, sTCP := errors.As(cerr, &cd), errors.As(serr, &sd)
			switch {
			case cerr == nil && serr == nil:
				both++
			case cTCP && sTCP:
				none++
				b.stillTCP(ct, st)
			case cTCP && serr == nil, sTCP && cerr == nil:
				t.Errorf("RoCE fails after %v: client %v, server %v", cut, cerr, serr)
			default:
				reset++
			}
			for _, x := range []struct {
				c   *Conn
				tcp TCPConn
			}{{c, ct}, {s, st}} {
				if x.c != nil {
					x.c.SetLinger(0)
					x.c.Close()
				} else {
					x.tcp.SetLinger(0)
					x.tcp.Close()
				}
			}
			time.Sleep(time.Minute)
		})
	}
	t.Logf("%d with SMC-R, %d with TCP, %d reset", both, none, reset)
	if both == 0 || none == 0 {
		t.Error("the times do not cover the whole first contact")
	}
}

// TestNoDeclineAfterAccept: on a subsequent contact, the server cannot decline after it
// has sent ACCEPT (RFC 7609, appendices C.1 and C.3), because the client may already have
// written data.
func TestNoDeclineAfterAccept(t *testing.T) {
	for name, edit := range map[string]func(*wire.Endpoint){
		"queue pair": func(e *wire.Endpoint) { e.QPN++ },
		"RKey":       func(e *wire.Endpoint) { e.RMB.RKey++ },
		"element":    func(e *wire.Endpoint) { e.RMBEIndex = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				words := &wordsOf{keep: func(w string) bool { return w == "A" }}
				b := newBed(t, bedConfig{devices: 2, fabric: simfabric.Config{Observe: words.observe}})
				c, s := b.connect()
				var own linkgroup.ConnParams
				c.d.View(func(core *linkgroup.Conn) { own = core.Local() })
				ct, st := b.tcp()
				done := make(chan struct{})
				go func() {
					defer close(done)
					p := scripted{t, ct}
					p.send(wire.Proposal{
						PeerID: b.client.peerIDNow(), GID: own.Link.GID, MAC: own.Link.MAC,
						IPv4: prefix(1, 0).Masked(), Growth: make([]byte, wire.ProposalGrowthLinux),
					})
					if a := as[wire.Accept](p); a.FirstContact {
						t.Error("ACCEPT of a first contact")
					}
					own.Token++
					e := endpoint(b.client.peerIDNow(), own)
					edit(&e)
					p.send(wire.Confirm{Endpoint: e})
				}()
				_, err := b.server.Server(t.Context(), st)
				<-done
				wantBroken(t, err, nil)
				st.SetLinger(0)
				st.Close()
				if n, err := ct.Read(make([]byte, 1)); err == nil {
					t.Errorf("the client got %d bytes after ACCEPT", n)
				}
				ct.Close()
				// A client that ignores TCP gets the reset over RoCE.
				b.exchange(c, s, pattern(3, 1000))
				if got := words.take(); !slices.Equal(got, []string{"server:A"}) {
					t.Errorf("the link group carried %q", got)
				}
				b.finish(c, s)
			})
		})
	}
}

// TestLateConfirm: after the server's ACCEPT, the client may take long to send CONFIRM,
// and uses SMC-R from then on. So the server waits, even if its program has ended, and
// then resets the connection on the link group.
func TestLateConfirm(t *testing.T) {
	for name, leaves := range map[string]bool{"wanted": false, "program gone": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				words := &wordsOf{keep: func(w string) bool { return w == "A" }}
				b := newBed(t, bedConfig{fabric: simfabric.Config{Observe: words.observe}})
				c, s := b.connect()
				ct, near := b.tcp() // the test is between the two ends
				far, st := b.tcp()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					cl, sv := scripted{t, near}, scripted{t, far}
					sv.send(as[wire.Proposal](cl))
					cl.send(as[wire.Accept](sv))
					confirm := as[wire.Confirm](cl)
					if leaves {
						cancel()
					}
					time.Sleep(25 * time.Second)
					sv.send(confirm)
				}()
				type served struct {
					c   *Conn
					err error
				}
				server := make(chan served, 1)
				go func() {
					x, err := b.server.Server(ctx, st)
					server <- served{x, err}
				}()
				c2, err := b.client.Client(t.Context(), ct)
				if err != nil {
					t.Fatal(err)
				}
				x := <-server
				<-done
				if leaves {
					wantBroken(t, x.err, nil)
					if err := b.ended(c2); err == nil {
						t.Error("the client's connection ended in order")
					}
					if got := words.take(); len(got) == 0 || got[0] != "server:A" {
						t.Errorf("the link group carried %q", got)
					}
					st.Close()
				} else {
					if x.err != nil {
						t.Fatal(x.err)
					}
					b.exchange(c2, x.c, pattern(1, 1000))
					b.finish(c2, x.c)
				}
				near.Close()
				far.Close()
				b.finish(c, s)
			})
		})
	}
}

// TestDeclineOfAnother: a link group ends because a peer has declined one connection. For
// the other connections this is not a DECLINE, so their peers must get an error.
func TestDeclineOfAnother(t *testing.T) {
	cause := errors.Join(linkgroup.ErrGroupDead, &DeclineError{Remote: true, Code: smc.DiagSync})
	if f := failureOf(cause); f.Why.Code != smc.DiagNoActiveLink || f.Why.Remote || f.NoFallback {
		t.Errorf("declined with %+v", f)
	}
}
