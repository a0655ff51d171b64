// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/stats"
)

// The data path counts into a Collector. A program that watches the stack takes
// snapshots and looks at their differences.
func ExampleCollector() {
	var c stats.Collector
	c.Connection(smc.Client, 2)
	before := c.Snapshot()

	c.Connection(smc.Client, 2)
	c.TX(4096, 4096) // a send call of 4096 bytes that accepted all of them
	c.RX(1 << 20)    // a receive call that returned 1 MiB
	d := c.Snapshot().Sub(before)

	r := d.SMCR.Rate(2 * time.Second)
	fmt.Printf("sent %.0f B/s, received %.0f B/s, %.1f connections/s\n", r.TXBytes, r.RXBytes, r.Connections)
	for i, n := range d.SMCR.RXSizes {
		if n > 0 {
			fmt.Printf("%d receive call of up to %d KiB\n", n, stats.BucketLimit(i)>>10)
		}
	}
	// Output:
	// sent 2048 B/s, received 524288 B/s, 0.5 connections/s
	// 1 receive call of up to 1024 KiB
}

// Why connections became plain TCP.
func ExampleFallbacks() {
	const peerNoSMC = 0x03010000 // peer did not indicate SMC
	var c stats.Collector
	c.Fallback(smc.Client, peerNoSMC)
	c.Fallback(smc.Client, peerNoSMC)
	f := c.Fallbacks()
	for _, r := range f.Reasons {
		fmt.Printf("%s: %d of %d for reason %#08x\n", r.Side, r.Count, f.ClientTotal, r.Reason)
	}
	// Output: client: 2 of 2 for reason 0x03010000
}
