// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"strings"
	"time"
)

// tornado has the tests of the web server and client with an event loop of its own.
func tornado() Suite {
	return Suite{
		Name: "tornado", Version: "/usr/bin/python3 -c 'import tornado; print(tornado.version)'",
		Packages: []Package{{"/usr/lib/python3/dist-packages/tornado/test/runtests.py", "python3-tornado"}},
		Jobs: []Job{{
			Name: "tests", Dir: "$WORK", Limit: 5 * time.Minute, Parse: unittest,
			Argv: []string{"/usr/bin/python3", "-m", "tornado.test.runtests", "--verbose"},
			Only: func(tests []string) []string { return tests },
		}},
	}
}

// twisted has the tests with sockets of the framework. Those of twisted.internet.test that concern a reactor run with
// each that there is, the others with one for each job.
func twisted() Suite {
	s := Suite{
		Name: "twisted", Version: "/usr/bin/python3 -c 'import twisted; print(twisted.__version__)'",
		Packages: []Package{{"/usr/lib/python3/dist-packages/twisted/test/test_tcp.py", "python3-twisted"}},
	}
	// Of twisted.internet.test, those with sockets: those with processes hang with some reactors.
	const internet = "test_core test_default test_endpoints test_epollreactor test_fdset test_newtls test_posixbase test_protocol test_resolver test_socket test_tcp test_threads test_tls test_udp test_unix"
	const old = "test_tcp test_tcp_internals test_ssl test_internet test_protocols test_ftp test_factories test_loopback test_stateful test_policies test_iutils test_threads"
	in := func(pkg, modules string) string {
		return pkg + "." + strings.Join(strings.Fields(modules), " "+pkg+".")
	}
	job := func(name, reactor, modules string, limit time.Duration) {
		s.Jobs = append(s.Jobs, Job{
			Name: name, Dir: "$WORK", Limit: limit, Parse: trial,
			Argv: []string{"bash", "$SCRIPTS/trial.sh", reactor, modules},
			Only: func(tests []string) []string { return tests },
		})
	}
	// Three of its tests wait for two minutes each, if connect has not returned when accept has.
	job("internet", "epoll", in("twisted.internet.test", internet), 15*time.Minute)
	const limit = 8 * time.Minute
	for _, reactor := range []string{"epoll", "poll", "select", "asyncio"} {
		job(reactor, reactor, in("twisted.test", old), limit)
	}
	job("web", "epoll", "twisted.web", limit)
	job("mail", "epoll", "twisted.mail", limit)
	// Tests of twisted.protocols.test.test_tls and twisted.spread.test.test_pbfailure wait for two minutes over TCP, too.
	job("protocols", "epoll", "twisted.protocols.test.test_basic twisted.words twisted.names twisted.spread.test.test_pb twisted.test.test_amp twisted.test.test_tpfile", limit)
	job("ssh", "epoll", in("twisted.conch.test", "test_cftp test_conch test_forwarding test_ssh"), limit)
	return s
}
