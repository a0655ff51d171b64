// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/trace/decode"
	"smcr/internal/trace/synth"
	"smcr/nl"
	"smcr/smc"
)

// endWait is how long the end of a trace may take. A trace that is not ended ends by itself.
const endWait = 2 * time.Second

// traceTypes are the types in requests.
var traceTypes = map[decode.Type]nl.TraceTypes{
	decode.CLC: nl.TraceCLC, decode.LLC: nl.TraceLLC, decode.CDC: nl.TraceCDC, decode.RoCE: nl.TraceRoCE,
}

// live shows the events of a stack until ctx ends or enough were shown.
func (o *options) live(ctx context.Context, out *sink) error {
	err := o.With(ctx, func(ctx context.Context, m nl.Multi) error {
		var unsupported error
		for _, b := range m {
			r := nl.TraceRequest{Group: o.group}
			for _, t := range o.filter.Types {
				r.Types |= traceTypes[t]
			}
			t, err := b.Trace(ctx, r)
			if errors.Is(err, nl.ErrNotSupported) {
				unsupported = err
				continue
			}
			if err != nil {
				return err
			}
			return o.follow(ctx, b, &t, out)
		}
		return cmdutil.Say(unsupported, "only the stack in user space can be traced: capture packets with tcpdump, "+
			"and show them with 'smcr trace -r FILE'")
	})
	if ctx.Err() != nil {
		return nil // interrupted
	}
	return err
}

// follow shows the events of a trace that has begun.
func (o *options) follow(ctx context.Context, b nl.Backend, t *nl.Trace, out *sink) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		_, _ = b.Trace(ctx, nl.TraceRequest{ID: t.ID, End: true}) // otherwise it ends by itself
	}()
	printable.Fprintf(o.IO.ErrOut, "smcr: tracing the %s stack, interrupt to end\n", b.Name)
	v := newViewer(out, t.Conns)
	for {
		next, err := b.Trace(ctx, nl.TraceRequest{ID: t.ID})
		if err != nil {
			return fmt.Errorf("the trace has ended: %w", err)
		}
		for i := range next.Events {
			if err := v.show(&next.Events[i]); err != nil {
				return err
			}
			if out.enough() {
				return nil
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
		if next.Lost > 0 {
			printable.Fprintf(o.IO.ErrOut, "smcr: %d events were lost: the output is too slow; select fewer events\n", next.Lost)
		}
	}
}

// A viewer makes the events of a stack readable, by the packets that they are or could be.
type viewer struct {
	out    *sink
	make   synth.Maker
	decode *decode.Decoder
	events []*decode.Event
}

func newViewer(out *sink, conns []nl.TraceConn) *viewer {
	v := &viewer{out: out}
	v.decode = decode.New(func(e *decode.Event) { v.events = append(v.events, e) })
	for _, c := range conns {
		conn := decode.Conn{Client: c.Local, Server: c.Remote}
		if c.Role == smc.Server {
			conn = decode.Conn{Client: c.Remote, Server: c.Local}
		}
		local, peer := decode.QP{Addr: c.GID.Addr(), QPN: smc.QPN(c.QPN)}, decode.QP{Addr: c.PeerGID.Addr(), QPN: smc.QPN(c.PeerQPN)}
		v.decode.Learn(conn, c.Token, local)
		v.decode.Learn(conn, c.PeerToken, peer)
		v.decode.LearnPair(local, peer)
	}
	return v
}

// show shows one event of a stack.
func (v *viewer) show(e *nl.TraceEvent) error {
	p, err := v.make.Packet(e)
	if err != nil {
		return nil // the stack does not know the peer of a link that it has not connected
	}
	local, peer := decode.QP{Addr: e.Local.Addr(), QPN: smc.QPN(e.QPN)}, decode.QP{Addr: e.Remote.Addr(), QPN: smc.QPN(e.PeerQPN)}
	v.decode.LearnPair(local, peer)
	v.events = v.events[:0]
	v.decode.Packet(p)
	for _, d := range v.events {
		if e.Group != 0 {
			d.Group = e.Group.String()
		}
	}
	return v.out.packet(p, v.events)
}
