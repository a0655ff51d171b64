// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"

	"golang.org/x/sys/unix"

	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
)

// stats carries out the object stats. A stack that does not answer is not a failure.
func (t *commandLine) stats(args []string) int {
	cmd := "show"
	if len(args) > 0 {
		cmd = command(args[0], "help", "show", "reset", "json")
	}
	if cmd == "" || cmd == "help" || len(args) > 1 {
		return t.misused("Usage: " + t.program() + " stats [show | reset]\n")
	}
	var file *cacheFile
	var cached *counters
	if !t.absolute {
		var err error
		file, err = openCache(t.cachePath(), t.UID, unix.O_RDWR)
		if err == nil {
			defer file.Close()
			cached, err = file.read()
		} else if errors.Is(err, errForeign) && cmd != "reset" {
			err = nil // a reset of this user would be in a file of this user
		}
		if err != nil {
			t.Errorf("Error: %v\n", err)
			return tool.Failed
		}
	}
	fallbacks, err := t.ctl.Fallbacks(t.ctx)
	if err != nil {
		t.failed(err)
		return 0
	}
	values, err := t.ctl.Stats(t.ctx)
	if err != nil {
		t.failed(err)
		return 0
	}
	now := newCounters(values, fallbacks)
	shown := now
	if cached != nil {
		if now.follow(cached) {
			shown = now.since(cached)
		} else {
			// The stack has restarted, so the reset is not valid any more.
			file.Remove()
		}
	}
	if cmd == "json" {
		t.printJSON(&shown)
	} else {
		t.printStats(&shown)
	}
	if cmd != "reset" {
		return 0
	}
	if file != nil {
		file.Close()
	}
	if file, err = openCache(t.cachePath(), t.UID, unix.O_RDWR); err == nil {
		defer file.Close()
		err = file.write(&now)
	}
	if err != nil {
		t.Errorf("Error: %v\n", err)
		return tool.Failed
	}
	return 0
}

// maxReasons is the number of fallback reasons that smc-tools keeps for each side.
const maxReasons = 30

// A reason counts the connections that became plain TCP for one reason.
type reason struct {
	code, count int32
}

// counters are all counters that the object stats shows and the cache file stores.
type counters struct {
	nl.Stats
	server, client       [maxReasons]reason
	serverSum, clientSum uint64
	peers                []nl.Fallback // reasons of peers
}

func newCounters(s nl.Stats, f nl.Fallbacks) counters {
	c := counters{Stats: s, serverSum: f.ServerTotal, clientSum: f.ClientTotal, peers: f.PeerReasons}
	for _, r := range f.Reasons {
		list := &c.client
		if r.Side != smc.Client {
			list = &c.server
		}
		i := 0
		for i < maxReasons-1 && list[i].code != 0 {
			i++
		}
		list[i] = reason{int32(r.Reason), int32(r.Count)}
	}
	return c
}

// numbers returns the numbers of both technologies and the handshake errors in
// the order of the cache file.
func (c *counters) numbers() []*uint64 {
	all := append(numbers(&c.SMCR), numbers(&c.SMCD)...)
	return append(all, &c.ClientHandshakeErrors, &c.ServerHandshakeErrors)
}

// isGauge reports whether the i-th number can decrease.
func isGauge(i int) bool {
	n := len(names)
	return i < 2*n && i%n >= n-2
}

// follow reports whether c can be later than before, because no counter has decreased.
func (c *counters) follow(before *counters) bool {
	now, then := c.numbers(), before.numbers()
	for i := range now {
		if *now[i] < *then[i] && !isGauge(i) {
			return false
		}
	}
	for _, side := range [][2]*[maxReasons]reason{{&c.server, &before.server}, {&c.client, &before.client}} {
		for _, r := range side[0] {
			if r.count < count(side[1], r.code) {
				return false
			}
		}
	}
	return c.serverSum >= before.serverSum && c.clientSum >= before.clientSum
}

// since returns the differences to the counters before. For a gauge, the difference is
// at least 0.
func (c counters) since(before *counters) counters {
	c.setOwn(c.Stats.Sub(before.Stats))
	c.peers = nl.Fallbacks{PeerReasons: c.peers}.Sub(nl.Fallbacks{PeerReasons: before.peers}).PeerReasons
	now, then := c.numbers(), before.numbers()
	for i := range now {
		*now[i] -= min(*then[i], *now[i])
	}
	for i := range maxReasons {
		c.server[i].count -= count(&before.server, c.server[i].code)
		c.client[i].count -= count(&before.client, c.client[i].code)
	}
	c.serverSum -= before.serverSum
	c.clientSum -= before.clientSum
	return c
}

// count returns how often a reason occurred.
func count(list *[maxReasons]reason, code int32) int32 {
	for _, r := range list {
		if r.code == code {
			return r.count
		}
	}
	return 0
}

// numbers returns the numbers of a technology in the order of names.
func numbers(t *stats.Tech) []*uint64 {
	var all []*uint64
	for _, h := range []*stats.Histogram{&t.TXBufSizes, &t.RXBufSizes, &t.TXSizes, &t.RXSizes} {
		for i := range h {
			all = append(all, &h[i])
		}
	}
	for _, b := range []*stats.Buffers{&t.TXBufs, &t.RXBufs} {
		all = append(all, &b.SmallPeer, &b.Small, &b.FullPeer, &b.Full, &b.Reuse, &b.Alloc, &b.Downgrade)
	}
	return append(all,
		&t.ClientV1, &t.ClientV2, &t.ServerV1, &t.ServerV2,
		&t.Sendpage, &t.Urgent, &t.Splice, &t.Cork, &t.NoDelay,
		&t.RXBytes, &t.TXBytes, &t.RXCalls, &t.TXCalls, &t.RXUsage, &t.TXUsage)
}

// names are the keys of the JSON form; numbers has the values.
var names = [...]string{
	"SMC_INT_TX_BUF_8K", "SMC_INT_TX_BUF_16K", "SMC_INT_TX_BUF_32K", "SMC_INT_TX_BUF_64K", "SMC_INT_TX_BUF_128K",
	"SMC_INT_TX_BUF_256K", "SMC_INT_TX_BUF_512K", "SMC_INT_TX_BUF_1024K", "SMC_INT_TX_BUF_G_1024K",
	"SMC_INT_RX_BUF_8K", "SMC_INT_RX_BUF_16K", "SMC_INT_RX_BUF_32K", "SMC_INT_RX_BUF_64K", "SMC_INT_RX_BUF_128K",
	"SMC_INT_RX_BUF_256K", "SMC_INT_RX_BUF_512K", "SMC_INT_RX_BUF_1024K", "SMC_INT_RX_BUF_G_1024K",
	"SMC_USR_TX_BUF_8K", "SMC_USR_TX_BUF_16K", "SMC_USR_TX_BUF_32K", "SMC_USR_TX_BUF_64K", "SMC_USR_TX_BUF_128K",
	"SMC_USR_TX_BUF_256K", "SMC_USR_TX_BUF_512K", "SMC_USR_TX_BUF_1024K", "SMC_USR_TX_BUF_G_1024K",
	"SMC_USR_RX_BUF_8K", "SMC_USR_RX_BUF_16K", "SMC_USR_RX_BUF_32K", "SMC_USR_RX_BUF_64K", "SMC_USR_RX_BUF_128K",
	"SMC_USR_RX_BUF_256K", "SMC_USR_RX_BUF_512K", "SMC_USR_RX_BUF_1024K", "SMC_USR_RX_BUF_G_1024K",
	"SMC_INT_TX_BUF_SIZE_SM_PEER_CNT", "SMC_INT_TX_BUF_SIZE_SM_CNT", "SMC_INT_TX_BUF_FULL_PEER_CNT",
	"SMC_INT_TX_BUF_FULL_CNT", "SMC_INT_TX_BUF_REUSE_CNT", "SMC_INT_TX_BUF_ALLOC_CNT", "SMC_INT_TX_BUF_DGRADE_CNT",
	"SMC_INT_RX_BUF_SIZE_SM_PEER_CNT", "SMC_INT_RX_BUF_SIZE_SM_CNT", "SMC_INT_RX_BUF_FULL_PEER_CNT",
	"SMC_INT_RX_BUF_FULL_CNT", "SMC_INT_RX_BUF_REUSE_CNT", "SMC_INT_RX_BUF_ALLOC_CNT", "SMC_INT_RX_BUF_DGRADE_CNT",
	"SMC_CLNT_V1_SUCC_CNT", "SMC_CLNT_V2_SUCC_CNT", "SMC_SRV_V1_SUCC_CNT", "SMC_SRV_V2_SUCC_CNT",
	"SMC_SENDPAGE_CNT", "SMC_URG_DATA_CNT", "SMC_SPLICE_CNT", "SMC_CORK_CNT", "SMC_NDLY_CNT",
	"SMC_RX_BYTES", "SMC_TX_BYTES", "SMC_RX_CNT", "SMC_TX_CNT", "SMC_RX_RMB_USAGE", "SMC_TX_RMB_USAGE",
}
