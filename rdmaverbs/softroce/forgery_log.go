// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"log/slog"
	"sync/atomic"
	"time"

	"smcr/smc"
)

// forgeryLog tells the log about packets from the address of a peer that are not from
// the peer's queue pair. Whoever sends them can send any number, so it says it once in
// forgeryInterval for all queue pairs of a device. The counters have all of them.
type forgeryLog struct {
	next atomic.Int64 // instant at which the log may be told again
}

const forgeryInterval = time.Minute

// forgery describes a packet that was dropped because of its UDP source port. The zero
// value describes none.
type forgery struct {
	qpn  uint32
	peer smc.GID
	port uint16   // from which it came
	want peerPort // of the peer
}

// tell logs f, if it is one and the last one is long enough ago. dropped is the number of
// such packets until now.
func (l *forgeryLog) tell(log *slog.Logger, now instant, f *forgery, dropped uint64) {
	if f.qpn == 0 {
		return
	}
	next := l.next.Load()
	if now < instant(next) || !l.next.CompareAndSwap(next, int64(now.add(forgeryInterval))) {
		return
	}
	log.Warn("packets from the address of a peer, but not from the UDP port of its queue pair, are dropped",
		"peer", f.peer.Addr(), "port", f.port, "peer port", f.want, "dropped", dropped)
}
