// SPDX-License-Identifier: Apache-2.0

package reasons

// found are the reasons without a number: what smcr run, the service and the commands
// find themselves. They are in the order of their names.
var found = []Reason{
	{
		Name: "behind-router", Title: "the peer is behind a router", Text: "is behind a router", Also: []string{"is behind router"},
		Cause: "The peer is behind a router, and version 1 of SMC-R works only within one subnet.",
		Cure: []string{
			"Use an address of the peer in a subnet of this host.",
			"Or use version 2: 'smcr ueid add EID' with the same enterprise ID on both hosts.",
		},
	},
	{
		Name: "device-down", Title: "the RoCE device is not active", Text: "is not active", Also: []string{"no device is up", "is down"},
		Cause: "The RoCE port for the network of the connection is not active, because its link or its netdev is down.",
		Cure: []string{
			"Set the netdev up: 'ip link set NETDEV up'. 'smcr device list' shows the netdev of each port.",
			"Check the cable and the port of the switch.",
		},
	},
	{
		Name: "device-elsewhere", Title: "no RoCE device belongs to the netdev of the connection", Text: "and no pnetid selects another one", Also: []string{"no device has pnetid", "no RoCE device has pnetid"},
		Cause: "There are RoCE devices, but none belongs to the network device of the connection.",
		Cure: []string{
			"Give the netdev and the RoCE device the same pnetid: 'smcr pnet add NET1 -I NETDEV -D IBDEV'.",
			"'smcr device list' shows the names, 'smcr pnet list' the pnetids.",
		},
	},
	{
		Name: "handshake-limit", Text: "the handshake limit is reached",
		Cause: "The handshake limitation is on, and many handshakes are under way, so new connections stay TCP.",
		Cure:  []string{"Nothing has to be done after a burst of connections.", "To try SMC-R always, switch the limitation off: 'smcr hslimit disable'."},
	},
	{
		Name: "host-silent", Title: "the host does not answer", Text: "does not answer",
		Cause: "Nothing answers at the address of the peer: no TCP, no ICMP echo, no neighbour discovery. Or the stack of this host hangs.",
		Cure: []string{
			"Check 'ip neigh' and the firewalls on the path.",
			"If the host runs a server, check with its port: 'smcr check HOST:PORT'.",
		},
	},
	{
		Name: "kernel-no-device", Text: "the kernel's SMC has no RoCE or ISM device with an active port",
		Cause: "The kernel has SMC, but no device that it could use.",
		Cure: []string{
			"List the devices of the kernel: 'smcr device list --backend kernel'.",
			"Without an RDMA adapter, use the user-space stack: 'smcr run --mode user -- PROGRAM'.",
		},
	},
	{
		Name: "kernel-no-smc", Text: "the kernel has no SMC", Also: []string{"the kernel has no SMC sockets (AF_SMC)"},
		Cause: "The kernel is built without SMC, or its module is not loaded.",
		Cure:  []string{"Load the module: 'modprobe smc'.", "Or use the user-space stack: 'smcr run --mode user -- PROGRAM'."},
	},
	{
		Name: "kernel-no-socket", Text: "the kernel did not create an SMC socket",
		Cause: "In mode kernel, socket() for AF_SMC failed, so the program got a TCP socket.",
		Cure:  []string{"Check that the module is loaded: 'modprobe smc'.", "Check with 'smcr info --backend kernel' and 'dmesg'."},
	},
	{
		Name: "kernel-too-old", Text: "the kernel has no seccomp user notification",
		Also:  []string{"the kernel does not support TCP header options by eBPF", "marking a listening socket needs Linux 6.12"},
		Cause: "This kernel lacks something that the user-space stack needs for programs.",
		Cure: []string{
			"Use Linux 5.15 or newer, with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF.",
			"Before Linux 6.12, start the stack before the server begins to listen: 'smcr serve'.",
		},
	},
	{
		Name: "landlock", Text: "a program has limited its connections with Landlock",
		Cause: "The program limits itself to some ports with Landlock. The kernel does not apply such rules to its SMC sockets, so in mode kernel all sockets are TCP from then on.",
		Cure:  []string{"Use mode user, where such programs keep their sockets: 'smcr run --mode user -- PROGRAM'."},
	},
	{
		Name: "many-files", Text: "the stack has too few descriptors", Also: []string{"descriptors of the stack: see"},
		Cause: "The stack has reached its limit of open files, or that of one user.",
		Cure: []string{
			"Raise the limit of open files of the service: LimitNOFILE= in the unit, or 'ulimit -n' before 'smcr serve'.",
			"Raise the share of each user: 'smcr serve --user-fds DESCRIPTORS', or --user-sessions for many programs.",
		},
	},
	{
		Name: "name-unknown", Title: "the name of the host has no address", Text: "has no address",
		Cause: "The name of the host cannot be resolved.",
		Cure:  []string{"Use the address, or check the name: 'getent hosts HOST'."},
	},
	{
		Name: "no-option", Text: "the TCP option of SMC is not permitted here",
		Cause: "A Go program with a stack of its own cannot announce SMC in the TCP handshake, because it may not load its eBPF program, and the peer is not in Config.AssumeSMC.",
		Cure: []string{
			"Run the program as root, or with CAP_BPF and CAP_NET_ADMIN.",
			"Or name the peers on both hosts, in Config.AssumeSMC.",
		},
	},
	{
		Name: "no-privilege", Title: "there is no stack, and no privilege to start one", Text: "no privilege to start one", Also: []string{"the user-space stack needs CAP_NET_RAW"},
		Cause: "No stack runs in this network namespace, and this user may not start one.",
		Cure:  []string{"Start it as root: 'systemctl enable --now smcr', or 'smcr serve'."},
	},
	{
		Name: "no-process-access", Text: "no permission to access the process", Also: []string{"cannot act as user"},
		Cause: "In mode kernel, the process of smcr that makes the sockets may not know or be whose the program is: the program has changed its user, or is in another user or PID namespace.",
		Cure:  []string{"Run 'smcr run' as root, or as the user to which the program changes.", "Inside a container, run 'smcr run' in the container too."},
	},
	{
		Name: "no-stack", Text: "the stack does not answer", Also: []string{"the stack ends", "no smcr stack in this network namespace", "the stack has ended", "the devices of the stack are closed", "use of closed network connection"},
		Cause: "The stack of this network namespace has ended or is ending.",
		Cure:  []string{"Start it: 'systemctl enable --now smcr', or 'smcr serve'. Running programs use it at once.", "Read why it ended: 'journalctl -u smcr'."},
	},
	{
		Name: "no-wire", Text: "the stack cannot take connections of programs at the devices",
		Cause: "The stack takes the connections of programs with eBPF at the network devices of the host, and makes a network namespace of its own for its sockets. The kernel, a container or a sandbox does not let it.",
		Cure: []string{
			"Read what failed: 'smcr info'.",
			"Start the stack as root, or with CAP_NET_ADMIN, CAP_BPF and, at its start, CAP_SYS_ADMIN.",
			"Use Linux 5.15 or newer, with CONFIG_BPF_SYSCALL and the modules veth, sch_ingress and cls_bpf.",
		},
	},
	{
		Name: "not-this-socket", Text: "not a plain TCP socket", Also: []string{"the socket is already in use: mark it before connect or listen", "the socket is not marked"},
		Cause: "A Go program with a stack of its own connects or listens with a socket that is no fresh TCP socket, or that has an option with which it cannot announce SMC: Multipath TCP, TCP Fast Open.",
		Cure:  []string{"Switch the option off in the program. For Multipath TCP, set GODEBUG=multipathtcp=0."},
	},
	{
		Name: "not-under-run", Text: "the program was not started under smcr run",
		Cause: "Connections are carried by SMC for programs that were started with 'smcr run' or smc_run, services that 'smcr service' has enabled, and what 'smcr attach' has attached. This one was started without.",
		Cure: []string{
			"Start the program again: 'smcr run -- PROGRAM'.",
			"For a service of systemd, without a restart: 'smcr service enable UNIT'.",
			"For what runs already: 'smcr attach --pid PID'.",
		},
	},
	{
		Name: "off-link", Title: "the destination is not on a directly attached network", Text: "destination is not on a directly attached network",
		Cause: "This host has no route to the peer that SMC-R could use: none at all, none for unicast, or one over a router of the other IP version.",
		Cure:  []string{"Check the route: 'ip route get ADDRESS'.", "Check step by step: 'smcr check HOST:PORT'."},
	},
	{
		Name: "other-namespace", Title: "the socket belongs to another network namespace", Text: "no privilege in the program's network namespace",
		Cause: "The program is in another network namespace than the process of smcr that makes its sockets, and the stack knows only the devices of its own.",
		Cure:  []string{"Run 'smcr run' and 'smcr serve' inside the network namespace of the program: 'ip netns exec NAME smcr serve'."},
	},
	{
		Name: "other-reasons", Text: "other reasons",
		Cause: "There were more different reasons than are counted.",
		Cure:  []string{"See each of them: 'smcr run --debug -- PROGRAM'."},
	},
	{
		Name: "other-stack", Text: "the stack of this network namespace belongs to another program",
		Cause: "A program that embeds a stack has the default address of this network namespace, and its stack carries only its own connections.",
		Cure:  []string{"Find the program with 'smcr info -o table' and end it, or let it answer at another address (userstack.Stack.ServeControl)."},
	},
	{
		Name: "path-died", Title: "a connection was reset because RoCE does not pass any more", Text: "transport retries exceeded", Also: []string{"the peer did not answer TEST LINK"},
		Cause: "The connection used SMC-R, and then nothing came from the peer over RoCE any more for as long as the stack waits ('smcr serve --stall-time 30s' sets it): the path is blocked, or packets of full size do not pass any more, or the host of the peer has ended.",
		Cure: []string{
			"Check that UDP port 4791 is open in both directions and that the MTU is right on the whole path.",
			"Nothing else has to be done: the next connections are TCP, and use SMC-R again when RoCE passes.",
		},
	},
	{
		Name: "sandbox", Title: "a sandbox does not let smcr run do its work", Text: "the sockets of the program cannot be replaced",
		Also:  []string{"no process can wait for the program"},
		Cause: "A seccomp filter around 'smcr run', of a service or a container, forbids a system call that mode kernel or the summary of -v needs. In mode kernel, the program runs as if started without smcr. Without the summary it uses SMC-R all the same.",
		Cure: []string{
			"Allow the call that the message names: SystemCallFilter= of the unit, or the seccomp profile of the container.",
			"Or use mode user without -v, which needs no such call: 'smcr run --mode user -- PROGRAM'.",
			"If the program ends by SIGSYS without a message, the filter kills instead of refusing, as SystemCallFilter= does without SystemCallErrorNumber=. Set SystemCallErrorNumber=EPERM, or run without -v.",
		},
	},
	{
		Name: "server-refused", Title: "the server refused the connection", Text: "connection refused",
		Cause: "The host answers, but no program listens at the port.",
		Cure:  []string{"Start the server on the peer, under 'smcr run' or smc_run."},
	},
	{
		Name: "stack-limit", Title: "a limit of the stack is reached", Text: "limit of the stack:", Also: []string{"are under way"},
		Cause: "A limit of the stack has been reached: memory, connections, link groups, or handshakes with one host.",
		Cure: []string{
			"See how many connections there are: 'smcr connection list' and 'smcr linkgroup list'.",
			"Raise the limit: 'smcr serve --max-memory BYTES', --user-memory, --max-connections, --user-connections or --max-linkgroups.",
		},
	},
	{
		Name: "tcp-fails", Title: "there is no TCP connection to the host", Text: "no connection to",
		Cause: "The TCP connection to the peer cannot be made, so there is nothing that SMC could use.",
		Cure:  []string{"Check the address, 'ip neigh' and the firewalls on the path.", "If the peer refuses the connection, start the server there: 'smcr run -- PROGRAM'."},
	},
	{
		Name: "v2-needed", Title: "the device has only RoCE version 2 GIDs", Text: "has only RoCE version 2 GIDs",
		Cause: "The RoCE port has no GID of RoCE version 1, so the kernel uses it only with version 2 of SMC.",
		Cure:  []string{"Define the same enterprise ID on both hosts: 'smcr ueid add EID'."},
	},
}
