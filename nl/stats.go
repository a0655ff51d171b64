// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"smcr/smc"
	"smcr/stats"
)

// statsAttrs, techAttrs and histogramAttrs encode the counters of package stats. The
// order of the attributes is that of the kernel. As with kernels, a counter that the
// stack does not have has no attribute.
type (
	statsAttrs     stats.Stats
	techAttrs      stats.Tech
	histogramAttrs stats.Histogram
)

// bufferAttrs encodes stats.Buffers.
type bufferAttrs struct {
	*stats.Buffers
	not *stats.Counters // the counters that the stack does not have
	// The flags in not of three counters, or 0 for a counter that all stacks have.
	small, smallPeer, fullPeer stats.Counters
}

func (t *techAttrs) txBufs() *bufferAttrs {
	return &bufferAttrs{Buffers: &t.TXBufs, not: &t.NotCounted, small: stats.CountTXSmall, smallPeer: stats.CountTXSmallPeer}
}

func (t *techAttrs) rxBufs() *bufferAttrs {
	return &bufferAttrs{
		Buffers: &t.RXBufs, not: &t.NotCounted,
		small: stats.CountRXSmall, smallPeer: stats.CountRXSmallPeer, fullPeer: stats.CountRXFullPeer,
	}
}

func (s *statsAttrs) encode(ae *attrEncoder) {
	nest(ae, attrStatsSMCD, (*techAttrs)(&s.SMCD))
	nest(ae, attrStatsSMCR, (*techAttrs)(&s.SMCR))
	ae.Uint64(attrStatsClientHSErr, s.ClientHandshakeErrors)
	ae.Uint64(attrStatsServerHSErr, s.ServerHandshakeErrors)
	if s.Panics > 0 {
		ae.Uint64(attrStatsPanics, s.Panics)
	}
	if s.Failovers > 0 {
		ae.Uint64(attrStatsFailovers, s.Failovers)
	}
	if s.ClientHandshakeTimes != (stats.Times{}) {
		nest(ae, attrStatsClientHSTimes, (*timesAttrs)(&s.ClientHandshakeTimes))
	}
	if s.ServerHandshakeTimes != (stats.Times{}) {
		nest(ae, attrStatsServerHSTimes, (*timesAttrs)(&s.ServerHandshakeTimes))
	}
	if s.Engine != (stats.Engine{}) {
		nest(ae, attrStatsEngine, (*engineAttrs)(&s.Engine))
	}
}

func (s *statsAttrs) decode(ad *attrDecoder) error {
	s.SMCD.NotCounted, s.SMCR.NotCounted = stats.CountOptional, stats.CountOptional // until attributes are found
	for ad.Next() {
		switch ad.Type() {
		case attrStatsSMCD:
			denest(ad, (*techAttrs)(&s.SMCD))
		case attrStatsSMCR:
			denest(ad, (*techAttrs)(&s.SMCR))
		case attrStatsClientHSErr:
			s.ClientHandshakeErrors = number(ad)
		case attrStatsServerHSErr:
			s.ServerHandshakeErrors = number(ad)
		case attrStatsPanics:
			s.Panics = number(ad)
		case attrStatsFailovers:
			s.Failovers = number(ad)
		case attrStatsClientHSTimes:
			denest(ad, (*timesAttrs)(&s.ClientHandshakeTimes))
		case attrStatsServerHSTimes:
			denest(ad, (*timesAttrs)(&s.ServerHandshakeTimes))
		case attrStatsEngine:
			denest(ad, (*engineAttrs)(&s.Engine))
		}
	}
	return ad.Err()
}

func (t *techAttrs) encode(ae *attrEncoder) {
	nest(ae, attrTechTXBufs, t.txBufs())
	nest(ae, attrTechRXBufs, t.rxBufs())
	nest(ae, attrTechTXSizes, (*histogramAttrs)(&t.TXSizes))
	nest(ae, attrTechRXSizes, (*histogramAttrs)(&t.RXSizes))
	nest(ae, attrTechTXBufSizes, (*histogramAttrs)(&t.TXBufSizes))
	nest(ae, attrTechRXBufSizes, (*histogramAttrs)(&t.RXBufSizes))
	ae.Uint64(attrTechClientV1, t.ClientV1)
	ae.Uint64(attrTechClientV2, t.ClientV2)
	ae.Uint64(attrTechServerV1, t.ServerV1)
	ae.Uint64(attrTechServerV2, t.ServerV2)
	ae.Uint64(attrTechRXBytes, t.RXBytes)
	ae.Uint64(attrTechTXBytes, t.TXBytes)
	if t.NotCounted&stats.CountRXUsage == 0 {
		uintAttr(ae, attrTechRXUsage, t.RXUsage)
	}
	if t.NotCounted&stats.CountTXUsage == 0 {
		uintAttr(ae, attrTechTXUsage, t.TXUsage)
	}
	ae.Uint64(attrTechRXCalls, t.RXCalls)
	ae.Uint64(attrTechTXCalls, t.TXCalls)
	counter(ae, attrTechSendpage, t.Sendpage, t.NotCounted, stats.CountSendpage)
	ae.Uint64(attrTechCork, t.Cork)
	ae.Uint64(attrTechNoDelay, t.NoDelay)
	counter(ae, attrTechSplice, t.Splice, t.NotCounted, stats.CountSplice)
	ae.Uint64(attrTechUrgent, t.Urgent)
}

func (t *techAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrTechTXBufs:
			denest(ad, t.txBufs())
		case attrTechRXBufs:
			denest(ad, t.rxBufs())
		case attrTechTXSizes:
			denest(ad, (*histogramAttrs)(&t.TXSizes))
		case attrTechRXSizes:
			denest(ad, (*histogramAttrs)(&t.RXSizes))
		case attrTechTXBufSizes:
			denest(ad, (*histogramAttrs)(&t.TXBufSizes))
		case attrTechRXBufSizes:
			denest(ad, (*histogramAttrs)(&t.RXBufSizes))
		case attrTechClientV1:
			t.ClientV1 = number(ad)
		case attrTechClientV2:
			t.ClientV2 = number(ad)
		case attrTechServerV1:
			t.ServerV1 = number(ad)
		case attrTechServerV2:
			t.ServerV2 = number(ad)
		case attrTechRXBytes:
			t.RXBytes = number(ad)
		case attrTechTXBytes:
			t.TXBytes = number(ad)
		case attrTechRXUsage:
			t.RXUsage = number(ad)
			t.NotCounted &^= stats.CountRXUsage
		case attrTechTXUsage:
			t.TXUsage = number(ad)
			t.NotCounted &^= stats.CountTXUsage
		case attrTechRXCalls:
			t.RXCalls = number(ad)
		case attrTechTXCalls:
			t.TXCalls = number(ad)
		case attrTechSendpage:
			t.Sendpage = number(ad)
			t.NotCounted &^= stats.CountSendpage
		case attrTechCork:
			t.Cork = number(ad)
		case attrTechNoDelay:
			t.NoDelay = number(ad)
		case attrTechSplice:
			t.Splice = number(ad)
			t.NotCounted &^= stats.CountSplice
		case attrTechUrgent:
			t.Urgent = number(ad)
		}
	}
	return ad.Err()
}

func (b *bufferAttrs) encode(ae *attrEncoder) {
	ae.Uint64(attrBufReuse, b.Reuse)
	counter(ae, attrBufSmallPeer, b.SmallPeer, *b.not, b.smallPeer)
	counter(ae, attrBufSmall, b.Small, *b.not, b.small)
	counter(ae, attrBufFullPeer, b.FullPeer, *b.not, b.fullPeer)
	ae.Uint64(attrBufFull, b.Full)
	ae.Uint64(attrBufAlloc, b.Alloc)
	ae.Uint64(attrBufDowngrade, b.Downgrade)
}

func (b *bufferAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrBufReuse:
			b.Reuse = number(ad)
		case attrBufSmallPeer:
			b.SmallPeer = number(ad)
			*b.not &^= b.smallPeer
		case attrBufSmall:
			b.Small = number(ad)
			*b.not &^= b.small
		case attrBufFullPeer:
			b.FullPeer = number(ad)
			*b.not &^= b.fullPeer
		case attrBufFull:
			b.Full = number(ad)
		case attrBufAlloc:
			b.Alloc = number(ad)
		case attrBufDowngrade:
			b.Downgrade = number(ad)
		}
	}
	return ad.Err()
}

// counter encodes a counter unless its flag c is in the set not.
func counter(ae *attrEncoder, typ uint16, v uint64, not, c stats.Counters) {
	if not&c == 0 {
		ae.Uint64(typ, v)
	}
}

func (h *histogramAttrs) encode(ae *attrEncoder) {
	for i, v := range h {
		ae.Uint64(uint16(i+1), v)
	}
}

func (h *histogramAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		if i := int(ad.Type()) - 1; i >= 0 && i < len(h) {
			h[i] = number(ad)
		}
	}
	return ad.Err()
}

// A fallbackAttrs is one answer of the fallback dump: a reason, or in the first
// answer a reason, the totals of both sides, and the reasons of peers. Rows of their own
// would be reasons of this host for programs that know only the answers of the kernel.
type fallbackAttrs struct {
	reason    reasonAttrs
	hasReason bool

	client, server uint64
	hasTotals      bool
	peers          []stats.Fallback
}

// reasonAttrs are the attributes of a reason.
type reasonAttrs stats.Fallback

func (f *fallbackAttrs) encode(ae *attrEncoder) {
	ae.Uint8(attrFbackType, uint8(f.reason.Side))
	if f.hasTotals {
		ae.Uint64(attrFbackServerTotal, f.server)
		ae.Uint64(attrFbackClientTotal, f.client)
	}
	if f.hasReason {
		f.reason.encodeCount(ae)
	}
	for i := range f.peers {
		ae.Nested(attrFbackPeerReason, (*reasonAttrs)(&f.peers[i]))
	}
}

func (f *fallbackAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrFbackServerTotal:
			f.server, f.hasTotals = number(ad), true
		case attrFbackClientTotal:
			f.client, f.hasTotals = number(ad), true
		case attrFbackPeerReason:
			var r reasonAttrs
			ad.Nested(&r)
			f.peers = append(f.peers, stats.Fallback(r))
		default:
			f.hasReason = f.hasReason || ad.Type() == attrFbackReason
			f.reason.take(ad)
		}
	}
	return ad.Err()
}

func (r *reasonAttrs) encode(ae *attrEncoder) {
	ae.Uint8(attrFbackType, uint8(r.Side))
	r.encodeCount(ae)
}

// encodeCount encodes all but the side.
func (r *reasonAttrs) encodeCount(ae *attrEncoder) {
	ae.Uint32(attrFbackReason, r.Reason)
	ae.Uint16(attrFbackCount, uint16(r.Count))
	if r.Count > 0xffff {
		ae.Uint64(attrFbackFullCount, r.Count)
	}
}

func (r *reasonAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		r.take(ad)
	}
	return ad.Err()
}

// take decodes the current attribute, if it is one of a reason.
func (r *reasonAttrs) take(ad *attrDecoder) {
	switch ad.Type() {
	case attrFbackType:
		r.Side = smc.Role(number8(ad))
	case attrFbackReason:
		r.Reason = number32(ad)
	case attrFbackCount, attrFbackFullCount:
		r.Count = max(r.Count, number(ad)) // the full count is sent if it is larger than 16 bits
	}
}

// fallbackAnswers returns the answers of a dump of f.
func fallbackAnswers(f Fallbacks) []fallbackAttrs {
	var s []fallbackAttrs
	for _, r := range f.Reasons {
		s = append(s, fallbackAttrs{reason: reasonAttrs(r), hasReason: true})
	}
	if len(s) == 0 {
		if f.ClientTotal == 0 && f.ServerTotal == 0 {
			return nil
		}
		s = append(s, fallbackAttrs{})
	}
	s[0].client, s[0].server, s[0].hasTotals = f.ClientTotal, f.ServerTotal, true
	s[0].peers = f.PeerReasons
	return s
}

// addAnswer is the inverse of fallbackAnswers for one answer.
func addAnswer(f *Fallbacks, a fallbackAttrs) {
	if a.hasTotals {
		f.ClientTotal, f.ServerTotal = a.client, a.server
	}
	if a.hasReason {
		f.Reasons = append(f.Reasons, stats.Fallback(a.reason))
	}
	f.PeerReasons = append(f.PeerReasons, a.peers...)
}
