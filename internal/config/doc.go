// SPDX-License-Identifier: Apache-2.0

// Package config is the configuration file of an SMC stack: what it means and
// how a stack, the kernel's or the one in user space, is brought to it.
//
//	pnetids:                      # smcr pnet
//	  - pnetid: NET1
//	    netdev: eth0
//	  - pnetid: NET1
//	    ibdev: mlx5_0
//	    ibport: 2
//	ueids:                        # smcr ueid
//	  - EXAMPLE.COM-1
//	seid: true                    # smcr seid: proposed to peers
//	handshake_limitation: false   # smcr hslimit
//
// A section that is there describes the whole of what it names: with
// "pnetids: []" a stack has no pnetids. A section that is not there says
// nothing, and what it would name is left alone.
//
// [Parse] checks everything that can be known without a stack. [Config.Plan]
// compares with a stack and [Plan.Apply] changes it: wholly, or not at all.
// [Export] is the inverse. Values are not safe for concurrent change. Planning
// and exporting need no privileges; applying needs those of the stack.
package config
