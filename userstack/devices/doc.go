// SPDX-License-Identifier: Apache-2.0

// Package devices finds, opens and shares the RDMA devices of a stack.
//
// A [Set] has the devices of several providers, in order of preference. Providers
// list their devices with the netdevs of the ports; nothing here depends on how a
// device is called. What serves a connection is a [Port]: a device may have several,
// on different netdevs. A device is opened when a connection first needs one of its
// ports, and stays open until it fails or the set is closed.
//
//	question                                   | answer
//	-------------------------------------------+---------------------------------
//	which ports serve a connection             | [Set.For], by route and pnetid
//	is there any, so that SMC is announced     | [Set.Offers], which opens none
//	may a link group use this port             | [Set.Serves]
//	what does the host have                    | [Set.List], open or not
//	which GID does a CLC message name          | [Port.SourceGID]
//
// On a netdev that several providers serve, the port of the first provider that can
// be opened and is active counts.
//
// Queue pairs, memory and link groups do not belong here: the package opens devices
// and does nothing with them. It decides by what package network and the pnetid table
// say, and asks no host itself.
//
// All methods are safe for concurrent use. Privileges are those of the providers.
package devices
