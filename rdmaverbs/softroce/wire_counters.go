// SPDX-License-Identifier: Apache-2.0

package softroce

import "sync/atomic"

// wireCounters has the packet counters of a wire.
type wireCounters struct {
	txPackets, txBytes, txLost                  atomic.Uint64
	rxPackets, rxBytes, overrunsV1, overrunsV2  atomic.Uint64
	dropMAC, dropShort, dropFormat, dropGID     atomic.Uint64
	dropLoopback, dropICRC, dropVersion, dropQP atomic.Uint64
	overrunsLoop, dropPKey                      atomic.Uint64
}

// wireStats is a snapshot of the counters of a wire. Bytes are counted from the
// BTH to the end of the pad.
type wireStats struct {
	TxPackets, TxBytes uint64
	TxLost             uint64 // the netdev or its queue did not accept them
	RxPackets, RxBytes uint64 // given to the handler
	Overruns           uint64 // lost because the receive buffer was full
	DropMAC            uint64 // other destination MAC, or another VLAN's frame
	DropShort          uint64 // headers or length field exceed the frame
	DropFormat         uint64 // GRH, IP or length not those of a RoCE packet
	DropGID            uint64 // destination GID is not that of this port
	DropLoopback       uint64 // source or destination is the loopback GID
	DropICRC           uint64 // wrong ICRC
	DropVersion        uint64 // transport header version is not 0
	DropQP             uint64 // destination is queue pair 0 or 1
	DropPKey           uint64 // not the default partition
}

func (c *wireCounters) snapshot() wireStats {
	return wireStats{
		TxPackets: c.txPackets.Load(), TxBytes: c.txBytes.Load(), TxLost: c.txLost.Load(),
		RxPackets: c.rxPackets.Load(), RxBytes: c.rxBytes.Load(), Overruns: c.overrunsV1.Load() + c.overrunsV2.Load() + c.overrunsLoop.Load(),
		DropMAC: c.dropMAC.Load(), DropShort: c.dropShort.Load(), DropFormat: c.dropFormat.Load(),
		DropGID: c.dropGID.Load(), DropLoopback: c.dropLoopback.Load(), DropICRC: c.dropICRC.Load(),
		DropVersion: c.dropVersion.Load(), DropQP: c.dropQP.Load(), DropPKey: c.dropPKey.Load(),
	}
}
