// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// features are what README.md says that smcr does, each with the end-to-end test that
// shows it. The gate runs these tests, part e2e runs all.
// A new feature gets a line here if no test of the list covers it.
var features = []struct{ feature, test string }{
	{"an unmodified server and client exchange 1 GiB over SMC-R", "TestNginxCurl1GiB"},
	{"so do programs with an event loop", "TestRedis"},
	{"so do programs with threads", "TestPythonHTTPServer"},
	{"so do programs that send to an address", "TestSockperf"},
	{"so do programs without a C library", "TestStaticGo"},
	{"TLS works over SMC-R", "TestTLS"},
	{"the socket API is as over TCP", "TestSocketAPI"},
	{"so are all options, flags and ioctl requests", "TestSocketRanges"},
	{"what was reported from the field is as over TCP", "TestField"},
	{"all descriptors of a socket show the same connection", "TestCopies"},
	{"a program that runs is attached, without a restart", "TestAttach"},
	{"so is a container, by its name", "TestAttachContainer"},
	{"so is a service of systemd, by its cgroup", "TestServiceAttached"},
	{"programs see the end of a connection as over TCP", "TestWireEnds"},
	{"a peer without SMC gets plain TCP", "TestOneSideOnly"},
	{"so does one behind a device that copies TCP options", "TestOptionCopied"},
	{"a listening socket announces SMC whoever accepts", "TestListenerPassed"},
	{"connections that are over at once become TCP", "TestAdapt"},
	{"connections within a network namespace are TCP", "TestWithinNamespace"},
	{"connections between network namespaces of a machine are TCP", "TestBetweenNamespaces"},
	{"RoCE version 2 works across routers", "TestRouted"},
	{"the first smcr run starts the stack", "TestOnDemandStack"},
	{"a listing says why a connection is not SMC-R", "TestFallbackListed"},
	{"smcr why says what carries any connection or listener, why, and what to do", "TestWhy"},
	{"where RoCE is blocked, connections are TCP, and SMC-R again later", "TestRoCEBlocked"},
	{"a server that accepts late is served", "TestLateAccept"},
	{"what a program has written and closed arrives, whatever ends first", "TestOneShot"},
	{"connections end on both sides if a stack dies", "TestStackKilled"},
	{"no user can take the place of the stack of root", "TestSquatter"},
	{"other users have only their own rights", "TestRights"},
	{"smcr run needs no privilege", "TestRun"},
	{"the stack runs as a user of its own, with three capabilities", "TestServeAsUser"},
	{"the rights of a container are enough, or the reason is said", "TestContainerRights"},
	{"link groups, links and connections are shown live", "TestTop"},
	{"the messages of a running stack can be seen, and Wireshark opens them", "TestTrace"},
	{"the systemd unit runs the stack, and its watchdog ends one that stands still", "TestSystemd"},
}

// featurePattern returns the argument of -run that selects the tests of the features.
func featurePattern() string {
	var names []string
	for _, c := range features {
		names = append(names, c.test)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
