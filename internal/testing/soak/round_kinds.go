// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/traffic"
	"smcr/smc"
	"smcr/userstack/wire"
)

// roundKind is something that comes and goes. A new one is a line of roundKinds.
type roundKind struct {
	name string
	run  func(ctx context.Context, r *roundsBed) error // one round

	stack   []string                                                // flags of the stack of the server's host
	client  []string                                                // flags of the client
	address func(ctx context.Context, r *roundsBed) (string, error) // where the client connects, if not with the server
	refused bool                                                    // the connections of the client fail
	keeps   bool                                                    // the connections stay open
	// seen returns how many there were of what the client has counted, and the stacks of a and b. It is nil if no
	// counter tells: run fails then if it is not what it should be.
	seen func(client traffic.Tally, a, b stackStats) int64
}

// roundTime bounds what the client does in one round.
const roundTime = 5 * time.Minute

var roundKinds = []roundKind{
	{name: "held", seen: overSMC, run: commands("hold %d 8", "exchange 8", "release 8")},
	{name: "open", seen: overSMC, keeps: true, run: commands("hold %d 8", "exchange 8")},
	{name: "open and full", seen: overSMC, keeps: true, run: commands("hold %d 8", fmt.Sprintf("fill %d 8", wholeElement))},
	{name: "filled", seen: overSMC, run: commands("hold %d 8", fmt.Sprintf("fill %d 8", wholeElement), "release 8")},
	{name: "short", seen: overSMC, run: commands("batch %d 1")},
	{name: "reset", seen: overSMC, run: commands("hold %d 8", "reset 8")},
	{name: "refused", seen: never, refused: true, address: nobodyListens, run: commands("batch %d 8")},
	{name: "timed out", seen: never, refused: true, address: nobodyAnswers, client: []string{"-connect-time", "1s"}, run: commands("batch %d 500")},
	{name: "declined by the server", seen: fallenBack, stack: []string{"--max-connections", "1"}, run: commands("hold %d 8", "exchange 8", "release 8")},
	{name: "declined by a server that lies", seen: fallenBack, address: decliner, run: commands("hold %d 8", "exchange 8", "release 8")},
	{name: "declined by the client", seen: declined, run: declinedByClient},
	{name: "no PROPOSAL", run: noProposal},
	{name: "PROPOSAL and reset", run: abandoned(false)},
	{name: "ACCEPT and reset", run: abandoned(true)},
	{name: "no CONFIRM", seen: declined, run: noConfirm},
	{name: "first contacts left", seen: accepted, run: contactsLeft},
	{name: "takeover", seen: overSMC, run: takeovers},
}

func overSMC(_ traffic.Tally, a, _ stackStats) int64 { return a.SMCR.ClientV1 + a.SMCR.ClientV2 }

func accepted(_ traffic.Tally, _, b stackStats) int64 { return b.SMCR.ServerV1 + b.SMCR.ServerV2 }

func fallenBack(_ traffic.Tally, a, _ stackStats) int64 { return a.Fallbacks.Client }

func declined(_ traffic.Tally, _, b stackStats) int64 { return b.Fallbacks.Server }

func never(client traffic.Tally, _, _ stackStats) int64 { return client.Tried - client.Conns }

// commands returns what the client does in a round.
func commands(list ...string) func(context.Context, *roundsBed) error {
	return func(ctx context.Context, r *roundsBed) error {
		for i, c := range list {
			if i == 0 {
				c = fmt.Sprintf(c, r.n)
			}
			if err := r.client.do(ctx, roundTime, "%s", c); err != nil {
				return err
			}
		}
		return nil
	}
}

// nobodyListens is a port of host b at which the kernel resets.
func nobodyListens(_ context.Context, r *roundsBed) (string, error) { return r.b.Addr() + ":7999", nil }

// nobodyAnswers is an address of the LAN that no host has.
func nobodyAnswers(ctx context.Context, r *roundsBed) (string, error) {
	a := r.hostile.Links[0].IPv4.As4()
	a[3] = 200
	nobody := netip.AddrFrom4(a).String()
	_, err := r.a.Output(ctx, "ip", "neigh", "replace", nobody, "lladdr", "02:00:00:00:77:77", "dev", r.a.Links[0].Name)
	return nobody + serverPort, err
}

// decliner is a server on the hostile host that announces SMC, declines each PROPOSAL, and sends back what it reads
// otherwise: a client that has been declined leaves its next connections to TCP for a time.
func decliner(ctx context.Context, r *roundsBed) (string, error) {
	ln, err := r.hostile.Listen(ctx, 7000)
	if err != nil {
		return "", err
	}
	r.closers = append(r.closers, ln)
	go func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = declineAndEcho(c, r.hostile.Own.PeerID)
			}()
		}
	}()
	return ln.Addr().String(), nil
}

func declineAndEcho(c *net.TCPConn, id smc.PeerID) error {
	b := make([]byte, wire.HeaderLen)
	n, err := c.Read(b) // a message comes at once, and what a program sends may be shorter
	if err != nil {
		return err
	}
	if h, err := wire.ParseHeader(b[:n]); err == nil && h.Type == wire.TypeProposal {
		if _, err := io.CopyN(io.Discard, c, int64(h.Length-n)); err != nil {
			return err
		}
		d := adversary.Dialog{Conn: c}
		if err := d.Send(wire.Decline{PeerID: id, Diagnosis: smc.DiagMem}); err != nil {
			return err
		}
	} else if _, err := c.Write(b[:n]); err != nil {
		return err
	}
	_, err = io.Copy(c, c)
	return err
}

// victim is the server of host b.
func (r *roundsBed) victim() netip.AddrPort { return server(r.b) }

// declinedByClient has a hostile client decline after ACCEPT, and use the connection as TCP.
func declinedByClient(ctx context.Context, r *roundsBed) error {
	return r.contacts(ctx, func(d *adversary.Dialog) error {
		if _, err := adversary.ReceiveAs[wire.AcceptV2](d, connectBound); err != nil {
			return err
		}
		if err := d.Send(wire.Decline{PeerID: r.hostile.Own.PeerID, Diagnosis: smc.DiagMem}); err != nil {
			return err
		}
		b := []byte("some bytes")
		if _, err := d.Conn.Write(b); err != nil {
			return err
		}
		_, err := io.ReadFull(d.Conn, b)
		return err
	})
}

// contacts makes first contacts from the hostile host, one after the other, each of a peer ID of its own, and closes them.
func (r *roundsBed) contacts(ctx context.Context, then func(d *adversary.Dialog) error) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	return several(ctx, r.n, 4, func() error {
		list, err := r.hostile.Dial(ctx, r.victim(), 1)
		if err != nil {
			return err
		}
		id := newPeer(r.hostile)
		p, err := id.Proposal(eid)
		err = errors.Join(err, list[0].Send(p))
		if err == nil {
			err = then(list[0])
		}
		return errors.Join(err, list[0].Close())
	})
}

// abandoned ends first contacts after PROPOSAL, or after ACCEPT.
func abandoned(accepted bool) func(context.Context, *roundsBed) error {
	return func(ctx context.Context, r *roundsBed) error {
		return r.contacts(ctx, func(d *adversary.Dialog) error {
			if !accepted {
				return nil
			}
			_, err := adversary.ReceiveAs[wire.AcceptV2](d, connectBound)
			return err
		})
	}
}

// noProposal has clients that announce SMC, and say nothing until the stack leaves them to TCP.
func noProposal(ctx context.Context, r *roundsBed) error {
	list, err := r.hostile.Dial(ctx, r.victim(), r.n)
	if err != nil {
		return err
	}
	pause(ctx, 8*time.Second) // longer than a server waits for PROPOSAL
	for _, d := range list {
		_ = d.Close()
	}
	return nil
}

// noConfirm has clients that never answer ACCEPT.
func noConfirm(ctx context.Context, r *roundsBed) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	list, err := r.hostile.Dial(ctx, r.victim(), r.n)
	for _, d := range list {
		id := newPeer(r.hostile)
		p, perr := id.Proposal(eid)
		err = errors.Join(err, perr, d.Send(p))
	}
	pause(ctx, 8*time.Second) // longer than a server waits for CONFIRM
	for _, d := range list {
		_ = d.Close()
	}
	return err
}

// contactsLeft makes link groups that the hostile host leaves without a word.
func contactsLeft(ctx context.Context, r *roundsBed) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	return several(ctx, r.n, 4, func() error {
		p, err := r.hostile.Join(ctx, r.victim(), eid, newPeer(r.hostile))
		if err == nil {
			leave(p)
		}
		return err
	})
}

// takeovers has a new stack take over on host b while connections are open, and more of them come after that.
func takeovers(ctx context.Context, r *roundsBed) error {
	if err := commands("hold %d 8", "exchange 8")(ctx, r); err != nil {
		return err
	}
	old := r.stacks[r.b]
	if err := r.stack(r.b, "--takeover"); err != nil {
		return err
	}
	if err := netnstest.Until(startTime, func() error {
		list, err := files(r.b)
		if err == nil && !slices.ContainsFunc(list, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "ending-") }) {
			err = errors.New("no stack is ending")
		}
		return err
	}); err != nil {
		return err
	}
	for _, c := range []string{"exchange 8", fmt.Sprintf("batch %d 8", r.n), "release 8"} {
		if err := r.client.do(ctx, roundTime, "%s", c); err != nil {
			return err
		}
	}
	if err := old.Wait(settleTime); err != nil {
		return fmt.Errorf("the old stack: %w\n%s", err, lastOf(old.Log(), 2000))
	}
	return nil
}
