// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"path"
	"slices"
	"strings"
	"time"
)

// reasons are the differences that stay, by "SUITE JOB TEST", a pattern of [path.Match], with their places in the
// documentation.
var reasons = map[string]string{}

// What tests want that a way over a second host does not promise.
const (
	wantsConnected  = "connect must have returned when accept has"
	wantsFast       = "connect must return within a hundred polls that do not wait"
	wantsFull       = "a reset must be there before 256 KiB are buffered"
	wantsHandshake  = "the client's last message of the handshake must be there when the client has its end"
	wantsUnbuffered = "3 MiB must not be buffered before the server closes"
)

// loopReasons are those of modes with a second host on the way, beside those of all modes: "Suites of others that
// talk to themselves" in docs/testing.md.
var loopReasons = map[string]string{
	"cpython test_ssl test.test_ssl.TestPreHandshakeClose.test_preauth_data_to_tls_server":                                "a reset must be there within the time of some system calls",
	"cpython test_asyncio test.test_asyncio.test_sendfile.*.test_sendfile_close_peer_in_the_middle_of_receiving":          wantsFull,
	"cpython test_asyncio test.test_asyncio.test_sendfile.*.test_sendfile_fallback_close_peer_in_the_middle_of_receiving": wantsFull,
	"cpython test_epoll test.test_epoll.TestEPoll.test_control_and_wait":                                                  wantsConnected,
	"cpython test_epoll test.test_epoll.TestEPoll.test_fromfd":                                                            wantsConnected,
	"cpython test_asyncore test.test_asyncore.TestAPI_UseIPv[46]*.test_connection_attributes":                             wantsFast,
	"libuv run-tests tcp_write_queue_order":                                                                               "10 MB must not be buffered",
	"libuv run-tests tcp_try_write_error":                                                                                 "a reset must be there before the send buffer is full of pieces of four bytes",
	"libevent * http/data_length_constraints":                                                                             wantsUnbuffered,
	"liburing sockets recv-multishot":                                                                                     "messages and the end behind them must be there within a millisecond",
	"liburing sockets shutdown":                                                                                           wantsConnected,
	"tornado tests tornado.test.iostream_test.TestIOStreamSSL*.test_inline_read_error":                                    wantsHandshake,
	"tornado tests tornado.test.httpserver_test.StreamingChunkSizeTest.test_chunked_body":                                 "what was written in four calls must be there when the first of it is read",
	"twisted * twisted.test.test_ftp.FTPServerAdvancedClientTests.test_STORtransferErrorIsReturned":                       wantsConnected,
	"twisted * twisted.test.test_tcp_internals.SelectReactorTests.test_acceptScaling":                                     "the end of a stream must be there within two rounds of the reactor that do not wait",
	"twisted internet twisted.internet.test.test_fdset.*.test_lostFileDescriptor":                                         wantsConnected,
	"twisted internet twisted.internet.test.test_fdset.*.test_negativeOneFileDescriptor":                                  wantsConnected,
	"twisted internet twisted.internet.test.test_newtls.*.test_startTLSAfterRegisterProducer*":                            wantsConnected,
	"twisted internet twisted.internet.test.test_tcp.*.test_serverGetHostOnIPv[46]":                                       wantsConnected,
}

// reason returns why the difference of a test in a mode stays, or "".
func reason(s *Suite, j *Job, m Mode, test string) string {
	key := s.Name + " " + j.Name + " " + test
	if why := lookUp(reasons, key); why != "" || !m.Loop {
		return why
	}
	return lookUp(loopReasons, key)
}

func lookUp(reasons map[string]string, key string) string {
	for pattern, why := range reasons {
		if ok, err := path.Match(pattern, key); err == nil && ok {
			return why
		}
	}
	return ""
}

// All returns the suites.
func All() []Suite {
	return []Suite{cpython(), goNet(), stunnel(), apache(), memcached(), redisUnits(), sockperf(), libuv(), libevent(), curlTests(), liburing(), node(), nginx(), tornado(), twisted(), goModules()}
}

func cpython() Suite {
	module := func(name string, limit time.Duration) Job {
		return Job{
			Name: name, Limit: limit, Parse: python,
			// The timeout is that of the module: it shows where a test hangs. VSOCK needs a hypervisor.
			Argv: []string{"/usr/bin/python3", "-m", "test", "-v", "-i", "*VSOCK*", "--junit-xml", "$RESULTS", "--timeout", "$TIMEOUT", name},
			Dir:  "$WORK",
			Only: func(tests []string) []string {
				var args []string
				for _, t := range tests {
					args = append(args, "-m", t)
				}
				return args
			},
		}
	}
	// It refuses to run without that resource, though it stays on the host.
	socketserver := module("test_socketserver", 2*time.Minute)
	socketserver.Argv = slices.Insert(slices.Clone(socketserver.Argv), 3, "-u", "network")
	return Suite{
		Name:     "cpython",
		Packages: []Package{{"/usr/lib/python3.11/test/test_socket.py", "libpython3.11-testsuite"}},
		Version:  "/usr/bin/python3 --version",
		Jobs: []Job{
			module("test_socket", 5*time.Minute), module("test_ssl", 5*time.Minute), module("test_asyncio", 10*time.Minute),
			socketserver, module("test_select", time.Minute), module("test_selectors", time.Minute), module("test_epoll", time.Minute), module("test_poll", 2*time.Minute),
			module("test_httplib", 2*time.Minute), module("test_httpservers", 3*time.Minute), module("test_urllib2_localnet", 2*time.Minute), module("test_ftplib", 2*time.Minute),
			module("test_smtplib", 2*time.Minute), module("test_imaplib", 3*time.Minute), module("test_poplib", 2*time.Minute),
			module("test_xmlrpc", 2*time.Minute), module("test_asyncore", 2*time.Minute), module("test_asynchat", 2*time.Minute), module("test_telnetlib", 2*time.Minute),
		},
	}
}

// script is a job whose both sides are a script of testdata.
func script(name string, limit time.Duration) Job {
	side := func(role string) []string {
		return []string{"bash", "$SCRIPTS/" + name + ".sh", role, "$ADDR", "$WORK"}
	}
	return Job{Name: name, Server: side("server"), Argv: side("client"), Limit: limit, Parse: tapNames, Quick: true}
}

func stunnel() Suite {
	j := script("stunnel", 4*time.Minute)
	j.Parse = tap // 20 downloads of one name
	return Suite{
		Name: "stunnel", Version: "stunnel4 -version 2>&1 | grep ^stunnel",
		Packages: []Package{{"/usr/bin/stunnel4", "stunnel4"}, {"/usr/bin/curl", "curl"}, {"/usr/bin/openssl", "openssl"}},
		Jobs:     []Job{j},
	}
}

func apache() Suite {
	return Suite{
		Name: "apache", Version: "apache2 -v | head -1",
		Packages: []Package{{"/usr/sbin/apache2", "apache2-bin"}, {"/usr/bin/ab", "apache2-utils"}, {"/usr/bin/curl", "curl"}},
		Jobs:     []Job{script("apache", 3*time.Minute)},
	}
}

func sockperf() Suite {
	return Suite{
		Name: "sockperf", Version: "sockperf --version | head -1",
		Packages: []Package{{"/usr/bin/sockperf", "sockperf"}},
		Jobs:     []Job{script("sockperf", 2*time.Minute)},
	}
}

// buildTools are what Debian's source packages in C need.
var buildTools = []Package{{"/usr/bin/gcc", "gcc"}, {"/usr/bin/make", "make"}, {"/usr/bin/dpkg-source", "dpkg-dev"}, {"/usr/bin/autoreconf", "autoconf"}, {"/usr/bin/automake", "automake"}, {"/usr/bin/libtoolize", "libtool"}}

func memcached() Suite {
	s := Suite{
		Name: "memcached", Source: "memcached", Version: "./memcached-debug -V",
		Packages: append([]Package{{"/usr/include/event2/event.h", "libevent-dev"}}, buildTools...),
		// Without unix sockets, the tests use TCP.
		Build: "[ -e configure ] || autoreconf -fi\n./configure -q --disable-unix-socket && make -s memcached-debug timedrun",
	}
	for _, name := range strings.Fields(`00-startup 64bit ascii-auth binary-get binary bogus-commands cas chunked-items conn-limits daemonize dash-M evictions expirations
		flags flush-all getandtouch getset idle-timeout incrdecr issue_104 issue_108 issue_14 issue_140 issue_152 issue_163 issue_183 issue_192 issue_22 issue_260 issue_29
		issue_3 issue_41 issue_42 issue_50 issue_61 issue_67 issue_68 issue_70 item_size_max line-lengths lru malicious-commands maxconns metaget misbehave multiversioning
		noreply quit refhang shutdown slabhang stats-conns stats-detail stats touch udp watcher watcher_connid whitespace`) {
		parse := parser(tap)
		if name == "maxconns" {
			parse = tapNames // it has a test for each connection that happens to be refused
		}
		s.Jobs = append(s.Jobs, Job{Name: name, Argv: []string{"perl", "-Ilib", "t/" + name + ".t"}, Dir: "$SOURCE", Limit: 2 * time.Minute, Parse: parse, Quick: name == "noreply"})
	}
	return s
}

func redisUnits() Suite {
	s := Suite{
		Name: "redis", Source: "redis", Version: "redis-server --version",
		Packages: []Package{{"/usr/bin/redis-server", "redis-server"}, {"/usr/bin/redis-cli", "redis-tools"}, {"/usr/bin/tclsh", "tcl"}, {"/usr/bin/dpkg-source", "dpkg-dev"}},
		// The programs are those of the binary packages of the same source.
		Build: "for p in server cli benchmark; do ln -sf /usr/bin/redis-$p src/; done; ln -sf /usr/bin/redis-server src/redis-sentinel",
	}
	for _, unit := range strings.Fields(`unit/limits unit/tracking unit/auth unit/protocol unit/quit unit/obuf-limits unit/pubsub unit/pubsubshard unit/introspection unit/introspection-2 unit/networking
		unit/multi unit/pause unit/querybuf unit/pendingquerybuf unit/client-eviction unit/type/list unit/shutdown unit/wait integration/replication-2 integration/replication-3 integration/block-repl integration/redis-cli integration/redis-benchmark integration/psync2-reg`) {
		limit := 4 * time.Minute
		if unit == "unit/obuf-limits" {
			limit = 15 * time.Minute // it fills all buffers on the way with messages of three bytes
		}
		s.Jobs = append(s.Jobs, Job{
			Name: unit, Argv: []string{"tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", "1", "--skipunit", "nothing"},
			Dir: "$SOURCE", Limit: limit, Parse: redis, Quick: unit == "unit/limits",
		})
	}
	return s
}

func libuv() Suite {
	return Suite{
		Name: "libuv", Source: "libuv1", Version: "sed -n 's/^#define UV_VERSION_\\(MAJOR\\|MINOR\\|PATCH\\) *//p' include/uv/version.h | paste -sd.",
		Packages: buildTools,
		Build:    "sh autogen.sh && ./configure -q --disable-shared && make -s check TESTS=",
		Jobs: []Job{{
			// As root, because the cache may be in a folder of root: the tests that want to be
			// refused something fail in all modes.
			Name: "run-tests", Argv: []string{"test/run-tests"}, Dir: "$SOURCE", Env: []string{"UV_RUN_AS_ROOT=1"}, Limit: 10 * time.Minute, Parse: tapNames,
		}},
	}
}

// libevent's tests have pairs of sockets that are Unix sockets. Job "pairs" has those of its replacement for hosts that have none,
// which are TCP over 127.0.0.1, in the tests that do not take for granted that what is written to one of them is at once in the other.
func libevent() Suite {
	s := Suite{
		Name: "libevent", Source: "libevent", Version: "sed -n 's/^PACKAGE_VERSION=//p' configure | head -1 | tr -d \\'",
		Packages: append([]Package{{"/usr/include/openssl/ssl.h", "libssl-dev"}, {"/usr/include/zlib.h", "zlib1g-dev"}}, buildTools...),
		Build: `autoreconf -fi >/dev/null 2>&1
./configure -q --disable-shared && make -s test/regress
cp test/regress test/regress-unix
sed -i 's/evutil_socketpair(AF_UNIX,/evutil_ersatz_socketpair_(AF_INET,/' test/regress_main.c test/regress_zlib.c
sed -i 's/^#include "regress.h"/&\n#include "util-internal.h"/' test/regress_zlib.c
make -s test/regress`,
	}
	methods := []string{"EPOLL", "POLL", "SELECT"}
	for _, method := range methods {
		j := Job{Name: strings.ToLower(method), Argv: []string{"test/regress-unix"}, Dir: "$SOURCE", Limit: 10 * time.Minute, Parse: tinytest, Only: func(tests []string) []string { return tests }}
		for _, other := range methods {
			if other != method {
				j.Env = append(j.Env, "EVENT_NO"+other+"=1")
			}
		}
		s.Jobs = append(s.Jobs, j)
	}
	s.Jobs = append(s.Jobs, Job{Name: "pairs", Argv: []string{"test/regress", "bufferevent/..", "ssl/..", "rpc/.."}, Dir: "$SOURCE", Limit: 5 * time.Minute, Parse: tinytest})
	return s
}

func curlTests() Suite {
	s := Suite{
		Name: "curl", Source: "curl", Version: "src/curl --version | head -1",
		Packages: append([]Package{{"/usr/include/openssl/ssl.h", "libssl-dev"}, {"/usr/include/zlib.h", "zlib1g-dev"}}, buildTools...),
		Build: `autoreconf -fi >/dev/null 2>&1
./configure -q --disable-shared --with-openssl --without-libpsl --without-librtmp --without-brotli --without-zstd --without-libidn2 --without-nghttp2 --disable-ldap --disable-manual
make -s && make -s -C tests`,
	}
	for _, part := range []string{"1 to 300", "301 to 700", "701 to 1199", "1200 to 1599", "1600 to 3100"} {
		s.Jobs = append(s.Jobs, Job{
			Name: part, Dir: "$SOURCE/tests", Limit: 10 * time.Minute, Parse: curl, Env: []string{"USER=root"}, // of sftp
			Argv: append([]string{"perl", "runtests.pl", "-n", "-a"}, strings.Fields(part)...),
		})
	}
	return s
}
