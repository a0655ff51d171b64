// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// failing is an Env of which one call fails, always or once.
type failing struct {
	*host
	call string
	once bool
}

// failNext makes a call of the group's Env fail until the returned function is called.
func (r *rig) failNext(call string) (stop func()) {
	e := &failing{host: r.h, call: call}
	r.g.env, r.g.rmbs.env = e, e
	return func() { e.call = "" }
}

func (e *failing) err(call string) error {
	if e.call != call {
		return nil
	}
	if e.once {
		e.call = ""
	}
	return errAny
}

func (e *failing) NewQP(l *Link, d Device) (Endpoint, error) {
	if err := e.err("NewQP"); err != nil {
		return Endpoint{}, err
	}
	return e.host.NewQP(l, d)
}

func (e *failing) ConnectQP(l *Link, peer Endpoint, mtu smc.MTU) error {
	return errors.Join(e.err("ConnectQP"), e.host.ConnectQP(l, peer, mtu))
}

func (e *failing) ReadyQP(l *Link) error { return errors.Join(e.err("ReadyQP"), e.host.ReadyQP(l)) }

func (e *failing) NewRMB(size int) ([]byte, any, error) {
	if err := e.err("NewRMB"); err != nil {
		return nil, nil, err
	}
	return e.host.NewRMB(size)
}

func (e *failing) RegisterRMB(handle any, l *Link) (smc.RKey, uint64, error) {
	if err := e.err("RegisterRMB"); err != nil {
		return 0, 0, err
	}
	return e.host.RegisterRMB(handle, l)
}

// TestAddLinkFailsAtServer: a device of the server does not take another queue pair or
// registration. The group stays with one link, and the server tries again later (RFC 7609,
// appendix C.8).
func TestAddLinkFailsAtServer(t *testing.T) {
	for _, call := range []string{"NewQP", "RegisterRMB"} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		r.begin()
		stop := r.failNext(call)
		r.recv(r.link, r.confirmLink(true, r.link))
		r.done()
		r.expect("confirm-link")
		if len(r.first) != 1 || r.first[0] != nil || len(r.g.links.list) != 1 || len(r.s.qps) != 1 {
			t.Errorf("%s: first contact %v, %d links, %d queue pairs", call, r.first, len(r.g.links.list), len(r.s.qps))
		}
		stop()
		r.wait(4999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		r.expect("add-link")
	}
}

// TestAddLinkFailsAfterReply: a server that cannot use the queue pair of a link which the
// client has accepted deletes that link (RFC 7609, appendix C.7.1).
func TestAddLinkFailsAfterReply(t *testing.T) {
	for call, want := range map[string]string{
		"ConnectQP": "delete-link(2)",
		"ReadyQP":   "add-link-continuation(1) delete-link(2)",
	} {
		r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Server, 1)) })
		r.begin()
		r.recv(r.link, r.confirmLink(true, r.link))
		r.expect("confirm-link add-link")
		r.failNext(call)
		r.recv(r.link, wire.AddLink{Reply: true, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}})
		if m := r.lastDelete(); m.Reason != wire.DeleteLinkLostPath || m.Orderly {
			t.Errorf("%s: %+v", call, m)
		}
		r.expect(want)
		if l := r.g.links.byID(2); l.qpOpen || len(r.first) != 0 {
			t.Errorf("%s: the queue pair is open: %v, first contact %v", call, l.qpOpen, r.first)
		}
		r.recv(r.link, wire.DeleteLink{Reply: true, LinkNum: 2})
		if len(r.first) != 1 || r.first[0] != nil {
			t.Errorf("%s: first contact %v", call, r.first)
		}
	}
}

// TestAddLinkFailsAtClient: a client whose device does not take another queue pair or
// registration rejects the link, and nothing is left of it (RFC 7609, section 3.5.1.6.1).
func TestAddLinkFailsAtClient(t *testing.T) {
	for _, call := range []string{"NewQP", "RegisterRMB", "ConnectQP"} {
		r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Client, 1)) })
		r.begin()
		r.recv(r.link, r.confirmLink(false, r.link))
		r.expect("re:confirm-link")
		r.failNext(call)
		r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
		r.expect("re:add-link-rejected1")
		if len(r.first) != 1 || r.first[0] != nil || len(r.g.links.list) != 1 || len(r.s.qps) != 1 {
			t.Errorf("%s: first contact %v, %d links, %d queue pairs", call, r.first, len(r.g.links.list), len(r.s.qps))
		}
	}
}

// TestServerGivesUpLink: the packets of a new link do not arrive, and the server deletes it.
// Linux does not try again, so the client tells it of its device after a pause that grows, but
// not while the server tries by itself.
func TestServerGivesUpLink(t *testing.T) {
	for _, reason := range []wire.DeleteLinkReason{wire.DeleteLinkLostPath, wire.DeleteLinkOperator} {
		r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Client, 1)) })
		r.begin()
		r.recv(r.link, r.confirmLink(false, r.link))
		r.expect("re:confirm-link")
		id := uint8(1)
		giveUp := func() {
			id++
			r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: id, MTU: 3})
			r.recv(r.link, wire.AddLinkCont{LinkNum: id, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}})
			r.expect("re:add-link re:add-link-continuation(1)")
			r.recv(r.link, wire.DeleteLink{LinkNum: id, Reason: reason})
			r.expect(fmt.Sprintf("re:delete-link(%d)", id))
			r.done()
		}
		giveUp()
		if reason != wire.DeleteLinkLostPath {
			r.wait(10 * time.Minute)
			r.expect("")
			continue
		}
		r.wait(19999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		r.expect("add-link")
		for range 4 { // a server that tries by itself
			r.wait(5 * time.Second)
			giveUp()
		}
		r.expect("")
		r.wait(299999 * time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		r.expect("add-link")
	}
}

// TestFirstLinkFails: errors of the device on the way to the first link are returned, and the
// group can be ended.
func TestFirstLinkFails(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, noTest)
		stop := r.failNext("NewQP")
		if _, err := r.g.FirstLink(r.s.now); !errors.Is(err, errAny) {
			t.Errorf("%s: FirstLink: %v", role, err)
		}
		stop()
		if _, err := r.g.FirstLink(r.s.now); err != nil {
			t.Errorf("%s: FirstLink again: %v", role, err)
		}
		for _, call := range []string{"NewRMB", "RegisterRMB"} {
			r.failNext(call)
			if _, err := r.g.NewConn(r.s.now, 0, 100); !errors.Is(err, errAny) || r.g.Conns() != 0 || len(r.h.rmbs) != 0 {
				t.Errorf("%s, %s: NewConn: %v, %d connections, %d RMBs", role, call, err, r.g.Conns(), len(r.h.rmbs))
			}
		}
		call := "ConnectQP"
		if role == smc.Server {
			call = "ReadyQP"
		}
		r.failNext(call)
		if err := r.g.ConnectFirst(r.s.now, peerRMB); !errors.Is(err, errAny) {
			t.Errorf("%s, %s: ConnectFirst: %v", role, call, err)
		}
		r.expect("")
		r.g.Terminate(r.s.now, wire.DeleteLinkProgram)
		if r.take(); len(r.dead) != 1 || len(r.s.qps) != 0 {
			t.Errorf("%s: dead %v, %d queue pairs", role, r.dead, len(r.s.qps))
		}
	}
}

// TestUnconfirmedLinkReason: a link whose CONFIRM LINK does not come is deleted as a lost path.
// That is no protocol violation (RFC 7609, appendix C.7.1).
func TestUnconfirmedLinkReason(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
		r.two(func(*Link) { r.wait(5 * time.Second) })
		if m := r.lastDelete(); m.LinkNum != 2 || m.Reason != wire.DeleteLinkLostPath || m.Orderly {
			t.Errorf("%s: %+v", role, m)
		}
	}
}

// TestCarrierLostAgainAtOnce: a server whose ADD LINK lost its carrier begins again when the
// two links have been deleted, and not only after the pause for a failed attempt (RFC 7609,
// section 2.3).
func TestCarrierLostAgainAtOnce(t *testing.T) {
	r, _, l3 := third(t)
	carrier := r.g.llc.ex.via
	r.g.LinkFailed(r.s.now, carrier, errAny)
	if l3.qpOpen || l3.state != smc.LinkInactive {
		t.Errorf("the new link is %s, its queue pair is open: %v", l3.state, l3.qpOpen)
	}
	other := r.g.links.best(nil)
	r.expect("delete-link(2)")
	r.recv(other, wire.DeleteLink{Reply: true, LinkNum: 2})
	r.expect("delete-link(3)")
	r.recv(other, wire.DeleteLink{Reply: true, LinkNum: 3})
	r.expect("add-link")
}
