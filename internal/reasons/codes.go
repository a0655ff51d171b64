// SPDX-License-Identifier: Apache-2.0

package reasons

import "smcr/smc"

// What several reasons have in common.
const (
	logs    = "Read the log of the stack on the side that declined: 'journalctl -u smcr' for 'smcr serve' as a service, 'dmesg' for the kernel."
	again   = "Try again: the next connection makes a new link group."
	report  = "If it happens again, please report it with the output of 'smcr info -o json' and the log."
	devices = "List the devices of the side that declined with 'smcr device list'."
	frames  = "Let RoCE through on the whole path: ethertype 0x8915 for version 1, UDP port 4791 for version 2. Check switches, VLANs, firewalls and the MTU."
	onlyISM = "Nothing has to be done for SMC-R: the reason is about SMC-D, which needs ISM devices (IBM Z)."
	release = "Use a current kernel or a current smcr on both hosts; 'smcr info' shows the versions."
)

// codes are the reasons with a number, by number.
var codes = []Reason{
	{
		Code: smc.DiagMem, Name: "no-memory", Text: "not enough memory",
		Cause: "The side that declined has no memory for the buffers of the connection, or it has reached a limit of its stack: memory, connections, link groups, or handshakes under way.",
		Cure: []string{
			"Look for the limit in the log of that side, and raise it: 'smcr serve --max-memory BYTES', --user-memory, --max-connections, --user-connections or --max-linkgroups.",
			"If a server gets many connections at once: its listening socket has room for so many handshakes, Send-Q of 'ss -ltn', of which those that announce SMC get a part. Raise it in the configuration of the program, and net.core.somaxconn.",
			"With the kernel's SMC, check 'ulimit -l' and the free memory of the host.",
		},
	},
	{
		Code: smc.DiagTimeoutConfLink, Name: "confirm-link-timeout", Text: "timeout in CONFIRM LINK",
		Cause: "TCP works between the hosts, but the first message over RDMA, CONFIRM LINK, did not arrive or was not answered.",
		Cure: []string{
			frames,
			"Compare the MTU of the network devices of both hosts: 'ip link' shows it.",
			"Check that both hosts speak the same version of RoCE: 'smcr device list -o wide' lists the devices, 'smcr serve --roce both' has both.",
		},
	},
	{
		Code: smc.DiagTimeoutAddLink, Name: "add-link-timeout", Text: "timeout in ADD LINK",
		Cause: "The link group has one link, and the exchange that adds the second one got no answer.",
		Cure: []string{
			"Check the path between the second RNICs of both hosts.",
			frames,
			"Give only RoCE ports of the same physical network the same pnetid: see 'smcr pnet list'.",
		},
	},
	{
		Code: smc.DiagConfig, Name: "configuration", Text: "configuration error",
		Cause: "The configuration of the side that declined does not permit SMC-R: SMC cannot be announced in the TCP handshake, or too many handshakes wait.",
		Cure: []string{
			"Check the stack of that side with 'smcr info' and the handshake limitation with 'smcr hslimit show'.",
			logs,
		},
	},
	{
		Code: smc.DiagPeerNoSMC, Name: "peer-no-smc", Text: "the peer does not speak SMC", Also: []string{"peer does not speak SMC"},
		Cause: "The peer did not announce SMC in the TCP handshake (TCP option 254): its program does not use SMC, its stack is not there, or something on the path removes the option.",
		Cure: []string{
			"On the host of the server, 'smcr why :PORT' with its port says what is missing there.",
			"Start the program of the peer with 'smcr run -- PROGRAM', or have its service use SMC-R: 'smcr service enable UNIT'.",
			"Start the stack of the peer: 'systemctl enable --now smcr', or 'smcr serve'. In a container of a pod: 'smcr serve --pod-cgroup DIRECTORY'.",
			"Look for a firewall or a load balancer that removes TCP option 254: capture the SYN on both hosts with 'tcpdump -v'.",
		},
	},
	{
		Code: smc.DiagIPsec, Name: "ipsec", Text: "connection uses IPsec",
		Cause: "An IPsec policy covers the two addresses. RDMA would carry the data past IPsec, so SMC-R does not take the connection.",
		Cure: []string{
			"Leave the connection to TCP if its data must be encrypted by IPsec.",
			"Otherwise take the addresses out of the policy: 'ip xfrm policy' lists the policies.",
		},
	},
	{
		Code: smc.DiagNoSMCDev, Name: "no-smc-device", Text: "no SMC device",
		Cause: "The side that declined has neither an RDMA device (SMC-R) nor an ISM device (SMC-D) for the network of the connection. 'smcr run' also says this when its stack has ended.",
		Cure: []string{
			devices,
			"If the device is there but belongs to another netdev, give both the same pnetid: 'smcr pnet add NET1 -I NETDEV -D IBDEV'.",
			"If there is no stack any more, start one: 'systemctl enable --now smcr', or 'smcr serve'.",
		},
	},
	{
		Code: smc.DiagNoSMCDDev, Name: "no-smcd-device", Text: "no SMC-D device",
		Cause: "The peer offers only SMC-D, and the side that declined has no ISM device.",
		Cure:  []string{onlyISM, "For SMC-R, add a RoCE device on the side that offers only SMC-D: see 'smcr device list' there."},
	},
	{
		Code: smc.DiagNoSMCRDev, Name: "no-smcr-device", Text: "no SMC-R device", Also: []string{"no RoCE device for this network", "no RoCE device on netdev", "the stack has no RoCE device"},
		Cause: "The side that declined has no active RoCE port for the network device of the connection, or its stack is ending.",
		Cure: []string{
			devices,
			"If the port is not active, set its netdev up: 'ip link set NETDEV up'.",
			"If the device belongs to another netdev, give both the same pnetid: 'smcr pnet add NET1 -I NETDEV -D IBDEV'.",
			"If 'smcr serve' runs with --netdev, name this netdev too.",
		},
	},
	{
		Code: smc.DiagNoISMv2, Name: "no-ism-v2", Text: "no ISM version 2 support",
		Cause: "The peer offers version 2 of SMC-D, and the side that declined has no ISM device that supports it.",
		Cure:  []string{onlyISM},
	},
	{
		Code: smc.DiagNoV2Ext, Name: "no-v2-extension", Text: "peer sent no version 2 extension",
		Cause: "The peer proposed version 2 of SMC without the extension that version 2 requires, or with one that is malformed.",
		Cure:  []string{release, "To use version 1, remove the enterprise IDs of one side: 'smcr ueid flush'."},
	},
	{
		Code: smc.DiagNoSMCDv2Ext, Name: "no-smcd-v2-extension", Text: "peer sent no SMC-D version 2 extension",
		Cause: "The peer proposed version 2 of SMC-D without the extension of SMC-D.",
		Cure:  []string{onlyISM, release},
	},
	{
		Code: smc.DiagNoSEID, Name: "no-seid", Text: "peer sent no system EID",
		Cause: "The sides have no user-defined enterprise ID in common, and one has no system enterprise ID. Only IBM Z has one.",
		Cure: []string{
			"Define the same enterprise ID on both hosts: 'smcr ueid add EID'.",
			"On IBM Z, enable the system enterprise ID: 'smcr seid enable'.",
		},
	},
	{
		Code: smc.DiagNoSMCDv2Dev, Name: "no-smcd-v2-device", Text: "no SMC-D version 2 device",
		Cause: "The side that declined has no ISM device for version 2 of SMC-D.",
		Cure:  []string{onlyISM},
	},
	{
		Code: smc.DiagNoUEID, Name: "no-ueid", Text: "no user EID in common", Also: []string{"no enterprise ID in common"},
		Cause: "Version 2 of SMC needs an enterprise ID that both hosts have, and they have none in common.",
		Cure: []string{
			"Compare 'smcr ueid list' of both hosts.",
			"Define the same enterprise ID on both: 'smcr ueid add EID'.",
		},
	},
	{
		Code: smc.DiagRelease, Name: "release", Text: "release negotiation failed",
		Cause: "The sides did not agree on a release of version 2 of SMC: one confirmed another release than the other had chosen.",
		Cure:  []string{release, logs},
	},
	{
		Code: smc.DiagMaxConns, Name: "max-conns", Text: "negotiation of connections per link group failed",
		Cause: "A side wants fewer than 16 connections in a link group, or confirmed another number than was agreed on.",
		Cure:  []string{"On Linux, set at least 16 on both hosts: 'sysctl net.smc.smcr_max_conns_per_lgr=255'."},
	},
	{
		Code: smc.DiagMaxLinks, Name: "max-links", Text: "negotiation of links per link group failed",
		Cause: "A side wants no link in a link group, more links than the other permits, or confirmed another number than was agreed on.",
		Cure: []string{
			"On Linux, permit one or two links on both hosts: 'sysctl net.smc.smcr_max_links_per_lgr=2'.",
			"With the user-space stack, use 'smcr serve --max-links 2' for peers with Linux.",
		},
	},
	{
		Code: smc.DiagModeMismatch, Name: "mode-mismatch", Text: "one peer offers only SMC-R, the other only SMC-D",
		Cause: "One side has only RoCE devices and the other has only ISM devices, so they have no kind of SMC in common.",
		Cure:  []string{"Add a RoCE device on the side with SMC-D only: 'smcr device list' there shows whether it has one."},
	},
	{
		Code: smc.DiagRMBEEyecatcher, Name: "eye-catcher", Text: "peer uses eyecatchers in RMB elements",
		Cause: "The peer begins its RMB elements with the eyecatcher of RFC 7609, and Linux refuses that.",
		Cure:  []string{"Run the stack of the peer without this option: 'smcr serve', not 'smcr serve --eye-catcher'."},
	},
	{
		Code: smc.DiagSocketOption, Name: "socket-option", Text: "socket option not supported by SMC",
		Cause: "The program set an option that SMC cannot carry, such as TCP Fast Open, or its socket is not plain TCP, such as Multipath TCP.",
		Cure: []string{
			"Switch the option off in the program. For TCP Fast Open: 'sysctl net.ipv4.tcp_fastopen=0'.",
			"For a Go program that uses Multipath TCP, set GODEBUG=multipathtcp=0.",
		},
	},
	{
		Code: smc.DiagPrefixMismatch, Name: "other-subnet", Text: "subnets or prefixes of the peers differ",
		Cause: "Version 1 of SMC-R works only within one subnet, and the server finds the client in another one.",
		Cure: []string{
			"Give the addresses of both hosts the same prefix and the same prefix length: see 'ip address'.",
			"Across routers, use version 2: 'smcr ueid add EID' with the same enterprise ID on both hosts.",
		},
	},
	{
		Code: smc.DiagVLAN, Name: "vlan", Text: "VLAN of the connection not found",
		Cause: "The side that declined could not find out the VLAN of the network device of the connection.",
		Cure:  []string{"Check the VLAN devices of that host: 'ip -d link'.", logs},
	},
	{
		Code: smc.DiagISMVLAN, Name: "ism-vlan", Text: "VLAN not usable on the ISM device",
		Cause: "The ISM device of the side that declined is not in the VLAN of the connection.",
		Cure:  []string{onlyISM, "For SMC-D, register the VLAN for the ISM device in the configuration of the machine."},
	},
	{
		Code: smc.DiagNoActiveLink, Name: "no-active-link", Text: "no active link in the link group",
		Cause: "The link group lost its last link, or ended or became full, while the connection was being made.",
		Cure: []string{
			again,
			"If the next one is TCP because RoCE does not pass, UDP port 4791 has been closed on the way, by a firewall for example: see 'smcr explain roce-blocked'.",
			"If it happens often, look for links that go up and down: 'smcr link list --watch' and 'smcr device list'.",
		},
	},
	{
		Code: smc.DiagNoServerLink, Name: "no-server-link", Text: "link of the server not found",
		Cause: "The server named a link of an existing link group that the client does not have.",
		Cure: []string{
			again,
			"If it does not go away, end the link group on one side: 'smcr linkgroup del GROUP' (user-space stack).",
		},
	},
	{
		Code: smc.DiagVersion, Name: "version", Text: "SMC versions of the peers differ",
		Cause: "The sides have no version of SMC in common.",
		Cure:  []string{"Compare the versions that 'smcr info' shows on both hosts.", "For version 2, define the same enterprise ID on both: 'smcr ueid add EID'."},
	},
	{
		Code: smc.DiagMaxDMB, Name: "max-dmbs", Text: "no more DMBs on the ISM device",
		Cause: "The ISM device of the side that declined has no free buffer (DMB) for another connection of SMC-D.",
		Cure:  []string{onlyISM, "For SMC-D, close connections, or spread them over more ISM devices."},
	},
	{
		Code: smc.DiagNoRoute, Name: "no-route", Text: "no route to the peer's RNIC",
		Cause: "SMC-R does not reach the peer. There is no route to its address or to that of its RNIC, or it is behind a router and the hosts do not use version 2.",
		Cure: []string{
			"Check the route: 'ip route get ADDRESS' with the address of the peer, and with that of its RNIC.",
			"Across routers, use version 2: 'smcr ueid add EID' with the same enterprise ID on both hosts.",
			"Let 'smcr check HOST:PORT' say which step fails.",
		},
	},
	{
		Code: smc.DiagIndirect, Name: "direct-or-routed", Text: "peers disagree on direct or routed RoCE",
		Cause: "One side reaches the RNIC of the other directly, the other one through a router.",
		Cure:  []string{"Give the netdevs of both RNICs the same prefix length: see 'ip address'.", "Compare the routes of both hosts: 'ip route get ADDRESS'."},
	},
	{
		Code: smc.DiagSilent, Name: "silent-peer", Text: "connections of the peer said nothing",
		Cause: "Many connections from this host, or from its network behind a router, announced SMC and then sent no CLC message for 6 s. Such connections keep places that others need, so the next ones from there are TCP: for a minute at first, for 15 minutes at most. Either somebody attacks this host, or something on the path takes the TCP option of SMC off the SYN-ACK, so that the peer does not know of SMC.",
		Cure: []string{
			"Nothing has to be done for TCP, nor for other hosts.",
			"To see whether the option is taken off: capture the SYN-ACK on both hosts with 'tcpdump -v', and look for the experiment id 0xe2d4c3d9.",
			"'smcr info' lists the peers, with the time that is left.",
		},
	},
	{
		Code: smc.DiagLocal, Name: "local", Text: "the peer is on this machine",
		Cause: "Both programs are on this machine, in one network namespace or in two, so their connection is TCP between their own sockets. Within a machine the kernel's TCP is faster than software RoCE.",
		Cure: []string{
			"Nothing has to be done.",
			"To test SMC-R on one machine, use two network namespaces, each with a stack of 'smcr serve --no-local'.",
		},
	},
	{
		Code: smc.DiagCopied, Name: "option-replayed", Text: "TCP options are copied back", Also: []string{"copies the TCP option of SMC into its answer", "does not answer PROPOSAL"},
		Cause: "The answer to the SYN had the TCP option of SMC, but the peer does not speak SMC: the peer, or a load balancer, firewall or proxy on the path, copies options that it does not know. Or the server has passed its listening socket to a process that does not run under 'smcr run'. The connection is TCP, and SMC is not announced to this port, for this user, for a time: a minute at first, an hour at most.",
		Cure: []string{
			"Nothing has to be done for TCP.",
			"To see who copies: capture the SYN and the SYN-ACK on both hosts with 'tcpdump -v'. An option with the experiment id 0x534d4372 in the SYN-ACK is a copy.",
			"For SMC-R, use an address of the peer that does not lead through that device, or switch the copying of TCP option 254 off there.",
		},
	},
	{
		Code: smc.DiagNoPath, Name: "roce-blocked", Text: "RoCE does not pass between the hosts: is UDP port 4791 open?", Also: []string{"it did not pass before; a connection tries again from time to time"},
		Cause: "TCP works between the hosts, but packets of RoCE do not arrive, or not those of full size. The stack remembers that for all programs: connections with the peer stay TCP at once, and one of them tries SMC-R again from time to time, first after 5 s and then at intervals of up to 30 s.",
		Cure: []string{
			"Open UDP port 4791 in both directions, on both hosts and on what is between them: 'nft list ruleset', the security groups of a cloud. RoCE version 1 needs ethertype 0x8915.",
			"Compare the MTU of the network devices of both hosts and of the path: 'ip link', and 'ping -M do -s 1472 ADDRESS' for an MTU of 1500.",
			"Nothing else has to be done: connections use SMC-R again within a minute.",
			"In a network that does not carry RoCE at all, leave the programs to TCP: 'smcr run --mode tcp -- PROGRAM'.",
		},
	},
	{
		Code: smc.DiagShort, Name: "short-connections", Text: "connections to the peer were too short for SMC",
		Cause: "Many connections to this destination carried so little that SMC-R took longer than TCP, so they are TCP, and smcr tries SMC-R again from time to time.",
		Cure:  []string{"Nothing has to be done.", "To use SMC-R for all of them, run the program with 'smcr run --no-adapt -- PROGRAM'."},
	},
	{
		Code: smc.DiagSync, Name: "out-of-sync", Text: "link group out of sync",
		Cause: "One side has a link group that the other side does not have any more, for example after a restart.",
		Cure: []string{
			again,
			"If it does not go away, end the old link group: 'smcr linkgroup del GROUP' (user-space stack).",
		},
	},
	{
		Code: smc.DiagPeerDeclined, Name: "peer-declined", Text: "peer declined",
		Cause: "The peer speaks SMC and declined this connection. Its reason is the second code: after the slash in listings.",
		Cure: []string{
			"Look up the reason of the peer: 'smcr explain CODE'.",
			"If there is none, read the log of the stack on the peer.",
		},
	},
	{
		Code: smc.DiagInternal, Name: "internal-error", Text: "internal error", Also: []string{"internal error, see the log"},
		Cause: "The side that declined could not go on, and no other code says why: a system call failed, or there is a bug.",
		Cure:  []string{logs, report},
	},
	{
		Code: smc.DiagRToken, Name: "rtoken", Text: "RToken not usable",
		Cause: "The peer named a buffer (RKey and address) that was not announced before, or parameters that are not valid.",
		Cure:  []string{again, release, report},
	},
	{
		Code: smc.DiagReadyLink, Name: "ready-link", Text: "link could not be activated",
		Cause: "The queue pair could not be connected to that of the peer: the address of the RNIC is not reachable, or the adapter refused.",
		Cure:  []string{"Check that the RNICs reach each other: 'smcr device list' shows their netdevs, 'ip neigh' their neighbours.", logs},
	},
	{
		Code: smc.DiagRegisterBuffers, Name: "register-buffers", Text: "buffers could not be registered",
		Cause: "The adapter could not register the buffers of the connection, or the peer refused them because another exchange was under way.",
		Cure:  []string{again, "Check 'ulimit -l' and the limits of the adapter on the side that declined.", logs},
	},
	{
		Code: smc.DiagOldTimeout, Name: "old-timeout", Text: "handshake timeout",
		Cause: "An older Linux kernel got no answer in the handshake: RoCE frames did not get through, or the peer was too slow.",
		Cure:  []string{frames, release},
	},
	{
		Code: smc.DiagOldReply, Name: "old-reply", Text: "invalid handshake reply",
		Cause: "An older Linux kernel did not understand the answer of its peer.",
		Cure:  []string{release},
	},
	{
		Code: smc.DiagOldSend, Name: "old-send", Text: "sending failed",
		Cause: "An older Linux kernel could not send a message of the handshake.",
		Cure:  []string{again, release},
	},
	{
		Code: smc.DiagOldInternal, Name: "old-internal-error", Text: "internal error of an older Linux kernel",
		Cause: "Something failed in an older Linux kernel of the peer.",
		Cure:  []string{"Read the log of that kernel: 'dmesg'.", release},
	},
}
