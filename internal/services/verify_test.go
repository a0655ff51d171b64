// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

func listener(cgroup, at string) socket {
	return socket{cgroup, nl.Connection{State: smc.StateListen, Local: netip.MustParseAddrPort(at)}}
}

func connection(cgroup, from, to string) socket {
	return socket{cgroup, nl.Connection{State: smc.StateActive, Local: netip.MustParseAddrPort(from), Remote: netip.MustParseAddrPort(to)}}
}

// running has the stack know the cgroup of a unit that runs, with what became of its connections so far.
func (b *bed) running(path string, o nl.Outcomes) {
	b.stack = nltest.NewFake(nltest.State{Attachments: []nl.Attachment{{Path: path, Cgroup: 7, Connect: true, Accept: true, Outcomes: o}}})
}

// TestVerifyNone: where no connection comes, enable says how to see one.
func TestVerifyNone(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		sockets []socket
		want    string
	}{
		"listens":       {[]socket{listener(cgroupA, "10.0.0.1:80"), listener(cgroupA, "127.0.0.1:81"), listener("/x", "10.0.0.1:70")}, "try 'smcr check 10.0.0.1:80' on a peer, and see 'smcr service status a'"},
		"anywhere":      {[]socket{listener(cgroupA+"/below", "[::]:443")}, "try 'smcr check " + host + ":443' on a peer"},
		"for itself":    {[]socket{listener(cgroupA, "127.0.0.1:80")}, "it listens only at 127.0.0.1:80, which no other host reaches, and connections within a machine are TCP"},
		"makes its own": {[]socket{connection(cgroupA, "10.0.0.1:40000", "10.0.0.2:80")}, "'smcr service status a' counts them"},
	} {
		b := newBed(t)
		b.unit("a.service")
		b.running(cgroupA, nl.Outcomes{SMCR: 3})
		b.sockets = c.sockets
		b.must("enable", "a", "--wait=1ms")
		if want := "smcr: not verified: a.service had no new connection within 1ms: " + c.want; !strings.Contains(b.errOut.String(), want) {
			t.Errorf("%s: %s\nwant %s", name, &b.errOut, want)
		}
	}
}

// TestVerifyAnnounced: enable says where the stack announces for a unit, before any connection, and what is not known of it.
func TestVerifyAnnounced(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	at := func(addr string) nl.Connection { return listener("", addr).Connection }
	b.stack = nltest.NewFake(nltest.State{
		Attachments: []nl.Attachment{{Path: cgroupA, Cgroup: 7, Connect: true, Accept: true}},
		Connections: []nl.Connection{at("10.0.0.1:80"), at("0.0.0.0:443"), at("127.0.0.1:81"), connection("", "10.0.0.1:90", "10.0.0.2:1").Connection},
	})
	b.sockets = []socket{listener(cgroupA, "10.0.0.1:80"), listener(cgroupA, "[::ffff:0.0.0.0]:443"), listener(cgroupA, "127.0.0.1:81"), listener(cgroupA, "10.0.0.1:90")}
	b.must("enable", "a", "--wait=1ms")
	for _, want := range []string{
		"smcr: checked: the stack announces SMC-R for a.service at 10.0.0.1:80, [::ffff:0.0.0.0]:443; not checked: whether RoCE passes between a peer and this host\n",
		"smcr: the stack does not announce SMC-R for a.service at 10.0.0.1:90: 'smcr why 10.0.0.1:90' says why\n",
	} {
		if !strings.Contains(b.errOut.String(), want) {
			t.Errorf("%s\nwant %s", &b.errOut, want)
		}
	}
	b.sockets = b.sockets[2:3]
	b.must("enable", "a", "--wait=1ms")
	if strings.Contains(b.errOut.String(), "announce") {
		t.Errorf("only for itself: %s", &b.errOut)
	}
}

// TestVerifyConnections: enable waits for a connection, and says what became of it. What was before does not count.
func TestVerifyConnections(t *testing.T) {
	why := nl.Fallback{Side: smc.Client, Reason: uint32(smc.DiagPeerNoSMC), Count: 1}
	before := nl.Outcomes{SMCR: 3, TCP: []nl.Fallback{why}}
	for name, c := range map[string]struct {
		then nl.Outcomes
		want string
	}{
		"SMC-R": {nl.Outcomes{SMCR: 4, TCP: before.TCP}, "checked: since then, 1 connection of a.service uses SMC-R\n"},
		"both":  {nl.Outcomes{SMCR: 5, TCP: []nl.Fallback{{Side: why.Side, Reason: why.Reason, Count: 2}}}, "since then, 2 connections of a.service use SMC-R, 1 TCP: " + "the peer does not speak SMC (see 'smcr explain "},
		"TCP":   {nl.Outcomes{SMCR: 3, TCP: []nl.Fallback{why, {Side: smc.Server, Reason: 0x7fffffff, Count: 2}}}, "0 connections of a.service use SMC-R, 2 TCP: 0x7fffffff\n"},
	} {
		b := newBed(t)
		b.unit("a.service")
		b.running(cgroupA, before)
		asked := 0
		b.on = func(all []nl.Attachment) {
			if asked++; asked > 4 { // whether there is a stack, for the entries, when it was attached, and a first look
				i := slices.IndexFunc(all, func(a nl.Attachment) bool { return a.Path == cgroupA })
				all[i].Outcomes = c.then
			}
		}
		b.must("enable", "a", "--wait=1m")
		if !strings.Contains(b.errOut.String(), c.want) {
			t.Errorf("%s: %s\nwant %s", name, &b.errOut, c.want)
		}
	}
}

// TestVerifyInterrupted: the unit stays enabled.
func TestVerifyInterrupted(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.running(cgroupA, nl.Outcomes{})
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := 0
	b.on = func([]nl.Attachment) {
		if asked++; asked > 4 { // as above
			cancel(interrupted)
		}
	}
	b.ctx = ctx
	if err := b.run("enable", "a", "--wait=1m"); !errors.Is(err, interrupted) {
		t.Error(err)
	}
	b.on = nil
	b.want(entryA, cgroupA)
}

// TestEnableSaysMissing: connections that stay TCP, units that do not run, and stacks that do not come again.
func TestEnableSaysMissing(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.unit("b.service")
	b.unit("b.socket", "Accept=yes")
	b.unit("smcr.service", "UnitFileState=disabled")
	b.stackUnit = "smcr.service"
	b.sockets = []socket{
		connection(cgroupA, "10.0.0.1:80", "10.0.0.2:40000"), connection(cgroupA, "10.0.0.1:80", "10.0.0.2:40001"),
		connection(cgroupA, "127.0.0.1:80", "127.0.0.1:40000"), connection(cgroupA, "10.0.0.1:80", "10.0.0.1:40000"), connection("/x", "10.0.0.1:80", "10.0.0.2:40002"),
	}
	says := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(b.errOut.String(), w) {
				t.Errorf("%s\nwant %s", &b.errOut, w)
			}
		}
	}
	b.must("enable", "a", "b")
	says("smcr: 2 open connections of a.service stay TCP until they end\n", "smcr: a.service does not run: its connections use SMC-R when it does\n",
		"smcr: b.service does not run: b.socket starts an instance of b@ for each connection: 'smcr service enable b@'\n",
		"smcr: after the next boot, there is no stack, as smcr.service is disabled: 'systemctl enable --now smcr'\n")
	b.must("enable", "a") // they may use SMC-R now
	if strings.Contains(b.errOut.String(), "stay TCP") {
		t.Errorf("%s", &b.errOut)
	}
	b.must("disable", "a")
	says("smcr: new connections of a.service are TCP\n")
	b.sockets = b.sockets[:1]
	b.must("enable", "a", "--restart")
	if strings.Contains(b.errOut.String(), "TCP until") {
		t.Errorf("they ended: %s", &b.errOut)
	}
	b.stackUnit = "smcr@x.service"
	b.must("enable", "a")
	says("there is no unit smcr@x.service: after the next boot, something else must start the stack")
	for _, state := range []string{"enabled", "static"} {
		b.unit("smcr@x.service", "UnitFileState="+state)
		b.must("enable", "a")
		if strings.Contains(b.errOut.String(), "boot") {
			t.Errorf("%s: %s", state, &b.errOut)
		}
	}
	b.stack = nil
	b.must("enable", "a")
	says("as soon as there is a stack: 'systemctl enable --now smcr@x'\n")
}
