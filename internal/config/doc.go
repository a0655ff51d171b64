// SPDX-License-Identifier: Apache-2.0

// Package config reads, writes and applies the configuration file of an SMC stack,
// the kernel's or the user-space stack. Flags of commands and the reading of the file
// at start belong to other packages.
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
//	programs:                     # smcr attach
//	  - cgroup: /system.slice/nginx.service
//	  - {cgroup: /user.slice, accept: false, adapt: false}
//
// A section describes a whole table: "pnetids: []" removes all pnetids. A missing
// section changes nothing.
//
// [Parse] checks everything that can be checked without a stack. [Config.Plan]
// compares a configuration with a stack, and [Plan.Apply] changes the stack,
// completely or not at all. [Export] is the inverse. Values are not safe for
// concurrent change. Planning and exporting need no privileges; applying needs those
// of the stack.
package config
