// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"testing"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"

	"github.com/google/go-cmp/cmp"
)

// eyePeers are the kinds of peers: what their CONFIRM LINK says of eye
// catchers, and what follows for the elements of either side.
var eyePeers = []struct {
	name         string
	role         smc.Role
	own          bool // configured
	peerNone     bool // the peer's CONFIRM LINK says that it has none
	eye, peerEye bool
}{
	{"Linux client", smc.Server, false, true, false, false},
	{"RFC client", smc.Server, false, false, true, true},
	{"server with, client that mirrors", smc.Server, true, false, true, true},
	{"server with, client without", smc.Server, true, true, true, false},
	{"Linux server", smc.Client, false, true, false, false},
	{"RFC server", smc.Client, false, false, true, true},
}

// begun is a group of which the peer has confirmed the first link, with a
// connection whose elements have 16 KiB on either side.
func begun(t *testing.T, role smc.Role, own, peerNone bool) *rig {
	t.Helper()
	r := newRig(t, role, func(c *Config) { noTest(c); c.EyeCatcher = own })
	r.begin()
	m := r.confirmLink(role == smc.Server, r.link)
	m.NoEyecatcher = peerNone
	r.recv(r.link, m)
	if role == smc.Server {
		r.recv(r.link, wire.AddLink{Reply: true, Rejected: true, Reason: 1, LinkNum: 2})
	} else {
		r.recv(r.link, wire.AddLink{LinkNum: 2, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: 0x901, MTU: 3})
	}
	r.done()
	if err := errors.Join(r.first...); err != nil || len(r.first) != 1 {
		t.Fatalf("first contact: %d outcomes, %v", len(r.first), err)
	}
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		t.Fatal(err)
	}
	r.acts = nil
	return r
}

// start is where the data of an element begins.
func start(eye bool) uint32 {
	if eye {
		return 4
	}
	return 0
}

// TestEyeCatcherCursors: cursors begin and wrap behind the eye catcher of the
// element that they point into (RFC 7609, sections 4.2 and 4.7), each side's
// for itself, and nothing is written over one.
func TestEyeCatcherCursors(t *testing.T) {
	const elem = 16 << 10
	base := peerRMB.VAddr + elem*uint64(peerRMB.Index-1)
	for _, tt := range eyePeers {
		t.Run(tt.name, func(t *testing.T) {
			r := begun(t, tt.role, tt.own, tt.peerNone)
			// Towards the peer: all of its element in pieces of 4096 bytes, so
			// that one write ends where the element does.
			first := start(tt.peerEye)
			room := int(elem - first)
			if c := r.c.Info().TxProd; c != (wire.Cursor{Count: first}) {
				t.Errorf("first producer cursor %+v", c)
			}
			var got, want []string
			var writes []capWrite
			note := func(list *[]string, format string, args ...any) { *list = append(*list, fmt.Sprintf(format, args...)) }
			collect := func() {
				r.take()
				for _, a := range r.acts {
					switch a.Kind {
					case ActWrite: // the send ring divides them too
						writes = appendWrite(writes, capWrite{a.RemoteAddr - base, a.RKey, a.Len})
					case ActSend:
						m, err := wire.ParseCDC(a.Message())
						if err != nil {
							t.Fatal(err)
						}
						for _, w := range writes {
							note(&got, "write %d at %d", w.size, w.addr)
						}
						writes = nil
						note(&got, "producer %d:%d", m.Prod.Wrap, m.Prod.Count)
					}
				}
				r.acts = nil
			}
			at, wrap := int(first), 0
			for sent := 0; sent < room; {
				n := min(4096, room-sent)
				r.send(n)
				collect()
				r.done()
				note(&want, "write %d at %d", n, at)
				if at += n; at == elem {
					at, wrap = int(first), wrap+1
				}
				note(&want, "producer %d:%d", wrap, at)
				sent += n
			}
			r.got(100) // the peer has read: room at the start of the element
			r.send(100)
			collect()
			note(&want, "write 100 at %d", first)
			note(&want, "producer 1:%d", first+100)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("want -, got +\n%s", d)
			}
			r.done()
			r.acts = nil

			// From the peer: all of our element, and its end.
			own := start(tt.eye)
			if c := r.c.Info().RxProd; c != (wire.Cursor{Count: own}) {
				t.Errorf("first cursor of our element %+v", c)
			}
			fill := elem - int(own)
			m := r.cdc()
			m.Prod, m.Flags = wire.Cursor{Wrap: 1, Count: own}, wire.ProdWriterBlocked
			r.recv(r.link, m)
			a, b := r.c.RecvData()
			if len(a) != fill || len(b) != 0 {
				t.Fatalf("%d and %d bytes to read, want %d", len(a), len(b), fill)
			}
			if &a[0] != &r.c.element()[own] {
				t.Errorf("data does not begin at byte %d of the element", own)
			}
			r.c.Consumed(r.s.now, fill)
			r.take()
			cons := lastCDC(t, r).Cons
			if cons != (wire.Cursor{Wrap: 1, Count: own}) {
				t.Errorf("consumer cursor %+v after all was read", cons)
			}
			r.done()
			r.acts = nil

			// A cursor into the eye catcher is that of no sound peer.
			if tt.eye {
				m = r.cdc()
				m.Prod = wire.Cursor{Wrap: 1, Count: own - 1}
				r.recv(r.link, m)
				if got := r.sent(); got != "cdc+A" || !errors.Is(r.c.ReadErr(), conn.ErrProtocol) {
					t.Errorf("cursor %+v: sent %q, %v", m.Prod, got, r.c.ReadErr())
				}
			}
		})
	}
}

func lastCDC(t *testing.T, r *rig) wire.CDC {
	t.Helper()
	m, err := wire.ParseCDC(r.last)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
