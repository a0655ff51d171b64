// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// simRecord is one line of a trace. It is decoded only if it is printed.
type simRecord struct {
	at   time.Duration
	ev   simfabric.Event
	len  int
	note string // a text of the simulation, a program or a log
}

// simTracer keeps what happened in a simulation.
type simTracer struct {
	mu    sync.Mutex // stacks log from many goroutines
	start time.Time
	recs  []simRecord
	hash  uint64 // over all fabric events so far: it is the same in each run of a seed
	count int
}

// maxSimRecords limits a trace; older records are dropped.
const maxSimRecords = 1 << 16

func (x *simTracer) add(r simRecord) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.at = time.Since(x.start)
	x.count++
	if len(x.recs) >= maxSimRecords {
		x.recs = append(x.recs[:0], x.recs[maxSimRecords/2:]...)
	}
	x.recs = append(x.recs, r)
}

// event adds a fabric event. It copies the bytes, because the fabric reuses them.
func (x *simTracer) event(e *simfabric.Event) {
	r := simRecord{ev: *e, len: len(e.Data)}
	keep := min(len(e.Data), 64)
	if e.Kind == simfabric.EventTCP {
		keep = len(e.Data)
	}
	data := e.Data[:keep]
	if e.Mem != nil {
		data = nil // the data before the write: not needed
	}
	r.ev.Data, r.ev.Mem = append([]byte(nil), data...), nil
	x.add(r)
	h := fnv.New64a()
	fmt.Fprint(h, x.hash, time.Since(x.start), e.Kind, e.From, e.To, e.RKey, e.Addr, len(e.Data), e.Note)
	h.Write(e.Data)
	h.Write(e.Mem)
	x.hash = h.Sum64()
}

func (x *simTracer) notef(format string, args ...any) {
	x.add(simRecord{note: fmt.Sprintf(format, args...)})
}

// print writes the last n lines.
func (x *simTracer) print(w io.Writer, n int) {
	recs := x.recs[max(0, len(x.recs)-n):]
	if skipped := x.count - len(recs); skipped > 0 {
		fmt.Fprintf(w, "(%d lines before)\n", skipped)
	}
	for i := range recs {
		fmt.Fprintf(w, "+%-12s %s\n", recs[i].at, recs[i].text())
	}
}

func (r *simRecord) text() string {
	if r.note != "" {
		return r.note
	}
	e := &r.ev
	way := fmt.Sprintf("%s>%s", e.From.Host, e.To.Host)
	qps := fmt.Sprintf("%s/%06x>%s/%06x", e.From.NetDev, e.From.QPN, e.To.NetDev, e.To.QPN)
	note := ""
	if e.Note != "" {
		note = " (" + e.Note + ")"
	}
	switch e.Kind {
	case simfabric.EventSend:
		return fmt.Sprintf("%s %s %s%s", way, simMessage(e.Data), qps, note)
	case simfabric.EventLost:
		return fmt.Sprintf("%s LOST %s %s", way, simMessage(e.Data), qps)
	case simfabric.EventWrite, simfabric.EventPartial:
		what := "WRITE"
		if e.Kind == simfabric.EventPartial {
			what = "WRITE, CUT,"
		}
		return fmt.Sprintf("%s %s %d bytes to %#x rkey %08x %s%s", way, what, r.len, e.Addr, e.RKey, qps, note)
	case simfabric.EventRefused:
		return fmt.Sprintf("%s WRITE REFUSED to %#x rkey %08x %s%s", way, e.Addr, e.RKey, qps, note)
	case simfabric.EventFailed:
		return fmt.Sprintf("%s QP %s/%06x fails: %s", e.From.Host, e.From.NetDev, e.From.QPN, e.Note)
	case simfabric.EventTCP:
		return fmt.Sprintf("%s TCP :%d>:%d %s%s", way, e.From.QPN, e.To.QPN, simCLC(e.Data), note)
	default:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", e.From.Host, e.From.NetDev, e.Note))
	}
}

// simMessage decodes an LLC or CDC message.
func simMessage(b []byte) string {
	if wire.IsCDC(b) {
		m, err := wire.ParseCDC(b)
		if err != nil {
			return fmt.Sprintf("CDC %v: %x", err, b)
		}
		return fmt.Sprintf("CDC seq %d token %08x prod %d:%d cons %d:%d flags %02x state %02x",
			m.Seq, m.Token, m.Prod.Wrap, m.Prod.Count, m.Cons.Wrap, m.Cons.Count, uint8(m.Flags), uint8(m.State))
	}
	m, err := wire.ParseLLC(b)
	if err != nil {
		return fmt.Sprintf("LLC %v: %x", err, b)
	}
	return fmt.Sprintf("LLC %s %s", m.LLCType(), strings.TrimPrefix(fmt.Sprintf("%+v", m), "wire."))
}

// simCLC names the CLC message that begins in b. TCP may cut it anywhere.
func simCLC(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) >= wire.HeaderLen {
		if h, err := wire.ParseHeader(b[:wire.HeaderLen]); err == nil {
			return fmt.Sprintf("CLC %s %d of %d bytes", h.Type, len(b), h.Length)
		}
	}
	return fmt.Sprintf("%d bytes %x", len(b), b[:min(len(b), 24)])
}

// simLog puts the log of a stack into the trace.
type simLog struct {
	x     *simTracer
	host  string
	attrs string
}

func (l simLog) Enabled(context.Context, slog.Level) bool { return true }

func (l simLog) Handle(_ context.Context, r slog.Record) error {
	text := l.host + " log: " + r.Message + l.attrs
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.x.notef("%s", text)
	return nil
}

func (l simLog) WithAttrs(as []slog.Attr) slog.Handler {
	for _, a := range as {
		l.attrs += " " + a.String()
	}
	return l
}

func (l simLog) WithGroup(string) slog.Handler { return l }
