// SPDX-License-Identifier: Apache-2.0

package field

// A Case is a situation with its neighbours.
type Case struct {
	// Name is that of the script in testdata, without its ending.
	Name string
	// Rule is what TCP keeps.
	Rule string
	// Variants are the neighbours, never empty.
	Variants []string
	// Alone means that one program has both sides.
	Alone bool
	// Fresh means that each variant needs hosts without a stack and without earlier
	// connections: it is about the first one.
	Fresh bool
	// TCP means that a connection may be TCP in each mode: its descriptor or its way to be
	// made is one that smcr leaves to TCP.
	TCP bool
	// Quick are the variants of the short form.
	Quick []string
}

// Cases are all cases.
var Cases = []Case{
	{
		Name: "closeevents", Rule: "poll reports POLLHUP only when both directions are shut",
		Variants: []string{"close", "half", "exit", "reset"}, Quick: []string{"close"},
	},
	{
		Name: "firstwrite", Rule: "the first write after the peer's close is accepted",
		Variants: []string{"data", "signal", "shut_rd", "unread"}, Quick: []string{"data", "signal"},
	},
	{
		Name: "optionsafter", Rule: "options keep their values after the peer's close, and can be set",
		Variants: []string{"client", "server"}, Quick: []string{"client"},
	},
	{
		Name: "setbefore", Rule: "options of a socket without connection change the data alone, never how long connect takes",
		Variants: []string{"low water", "small buffers", "small segments", "times", "peek offset", "cork", "window", "linger", "hops"}, Quick: []string{"low water"},
	},
	{
		Name: "sendto", Rule: "sendto ignores the address on a connected socket",
		Variants: []string{"all"}, Quick: []string{"all"},
	},
	{
		Name: "relisten", Rule: "the port of a closed listening socket is free at once", Alone: true,
		Variants: []string{"signal", "again", "timeout", "process", "poll"}, Quick: []string{"signal"},
	},
	{
		Name: "deferaccept", Rule: "TCP_DEFER_ACCEPT delays accept until there is data, and no longer",
		Variants: []string{"10", "1", "silent"}, Quick: []string{"10"},
	},
	{
		Name: "dupbefore", Rule: "all descriptors of a socket are one connection", TCP: true,
		Variants: []string{"dup", "dup2", "child connects", "child uses", "exec", "passed"}, Quick: []string{"dup2", "child connects", "passed"},
	},
	{
		Name: "oneshot", Rule: "what a program has written and closed arrives, also if it ends at once", Fresh: true,
		Variants: []string{
			"end of the server", "end after an option of the server", "later end of the server", "death of the server", "end with much data of the server", "end without close of the server", "end with unread data of the server",
			"end of the client", "later end of the client", "death of the client", "end with much data of the client", "end without close of the client", "end with unread data of the client",
		},
		Quick: []string{"end of the server"},
	},
	{
		Name: "interfaces", Rule: "ioctls of interfaces are about the program's own network namespace",
		Variants: []string{"all"}, Quick: []string{"all"},
	},
	{
		Name: "sourceport", Rule: "TIME_WAIT is at the side that closed first",
		Variants: []string{"same source port", "restart, client first", "restart, server first"}, Quick: []string{"same source port", "restart, client first"},
	},
	{
		Name: "linger", Rule: "SO_LINGER with zero resets, at once and in all ways to end",
		Variants: []string{"server", "client", "copy of server", "exit of server", "exit of client"}, Quick: []string{"server"},
	},
}

// A Mode is a way to run both sides.
type Mode struct {
	Name string
	// OneMachine means that both hosts are network namespaces of one machine.
	OneMachine bool
	// Server and Client are the flags of smcr run for the side. nil is TCP, without smcr.
	Server, Client []string
	// Bare means that no side has smcr run: the stacks take the connections of all programs.
	Bare bool
}

// reference reports whether the mode is TCP, the judge.
func (m Mode) reference() bool { return m.Server == nil && m.Client == nil && !m.Bare }

// runFlags are those of every mode: connections must not become TCP for being short.
var runFlags = []string{"--mode", "user", "--no-adapt", "-v"}

// Modes are the ways in which each case runs, the judge first.
var Modes = []Mode{
	{Name: "tcp"},
	{Name: "smc", Server: runFlags, Client: runFlags},
	{Name: "bare", Bare: true},
	{Name: "server", Server: runFlags},
	{Name: "client", Client: runFlags},
	{Name: "netns", OneMachine: true, Server: runFlags, Client: runFlags},
}
