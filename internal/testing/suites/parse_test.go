// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestParsers: each parser finds the tests in what a suite prints.
func TestParsers(t *testing.T) {
	xml := filepath.Join(t.TempDir(), "results")
	if err := os.WriteFile(xml, []byte(`<testsuites errors="0" failures="1" tests="4"><testsuite end="" errors="0" failures="1" start="" tests="4">
<testcase name="test.test_socket.A.testOK" result="completed" status="run" time="0.1" />
<testcase name="test.test_socket.A.testBad" result="completed" status="run" time="0.1"><failure message="x" type="AssertionError">text</failure></testcase>
<testcase name="test.test_socket.A.testError" result="completed" status="run" time="0.1"><error message="x" type="OSError">text</error></testcase>
<testcase name="test.test_socket.A.testNot" result="skipped" status="notrun" time="0"><skipped>no</skipped></testcase>
</testsuite></testsuites>`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		parse           parser
		output, results string
		want            Tests
	}{
		"python": {python, "", xml, Tests{
			"test.test_socket.A.testOK": OK, "test.test_socket.A.testBad": Failed, "test.test_socket.A.testError": Failed, "test.test_socket.A.testNot": Skipped,
		}},
		"python that was ended": {python, `testA (test.test_socket.A.testA) ... ok
testB (test.test_socket.A.testB)
What it is about. ... ERROR
testC (test.test_socket.A.testC) ... skipped 'no'
testD (test.test_socket.A.testD) ... FAIL
testE (test.test_socket.A.testE) ... `, "/does/not/exist", Tests{
			"test.test_socket.A.testA": OK, "test.test_socket.A.testB": Failed, "test.test_socket.A.testC": Skipped, "test.test_socket.A.testD": Failed,
		}},
		"trial": {trial, `twisted.test.test_tcp.A.test_ok ... [OK]
twisted.internet.test.test_tcp.A_Gtk2ReactorTests.test_none ... [SKIPPED]
Some warning
twisted.test.test_tcp.A.test_bad ... [FAILURE]
twisted.test.test_tcp.A.test_left ... [ERROR]
                                                                 [ERROR]
twisted.test.test_tcp.A.test_later ... [TODO]
twisted.test.test_tcp.A.test_hangs ... `, "", Tests{
			"twisted.test.test_tcp.A.test_ok": OK, "twisted.internet.test.test_tcp.A_Gtk2ReactorTests.test_none": Skipped, "twisted.test.test_tcp.A.test_bad": Failed,
			"twisted.test.test_tcp.A.test_left": Failed, "twisted.test.test_tcp.A.test_later": OK,
		}},
		"go": {golang, `{"Action":"start"}
{"Action":"run","Test":"TestA"}
{"Action":"run","Test":"TestA/sub"}
{"Action":"fail","Test":"TestA/sub"}
{"Action":"fail","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"pass","Test":"TestB"}
{"Action":"run","Test":"TestC"}
{"Action":"skip","Test":"TestC"}
{"Action":"run","Test":"TestHangs"}
not JSON
{"Action":"fail"}
`, "", Tests{"TestA": Failed, "TestA/sub": Failed, "TestB": OK, "TestC": Skipped, "TestHangs": Failed}},
		"tap": {tap, `1..5
ok 1 - set of 100 keys in 3 ms
not ok 2 - second
ok 3 # SKIP no
not ok 4 - known # TODO later
# not ok 9 - a comment
ok 5
`, "", Tests{"1 set of N keys in N ms": OK, "2 second": Failed, "3": Skipped, "4 known": OK, "5": OK}},
		"tap by names": {tapNames, "ok 1 - tcp_a\nnot ok 2 - tcp_b\nok 3 - tcp_c # SKIP no\n", "", Tests{"tcp_a": OK, "tcp_b": Failed, "tcp_c": Skipped}},
		"tap by files": {tapFiles, "ok 1 - test-http-304\nnot ok 2 - test-http-1.0\n# ended with 1\nok 3 - 232c93d07b74 # SKIP\n", "", Tests{"test-http-304": OK, "test-http-1.0": Failed, "232c93d07b74": Skipped}},
		"redis": {redis, "\x1b[0;32m[ok]\x1b[0m: Check if maxclients works (12 ms)\n[err]: Tracking of 3 keys in tests/unit/tracking.tcl\nExpected x\n[skip]: not here\n[1/1 \x1b[1;33mdone\x1b[0m]: unit/limits (3 seconds)\n", "",
			Tests{"Check if maxclients works": OK, "Tracking of N keys": Failed, "not here": Skipped}},
		"tinytest": {tinytest, `main/version: OK
http/cancel_by_host: [forking] [warn] Error from accept() call: Success
OK
http/https_incomplete: [forking] 
  FAIL test/regress_http.c:3154: assert(test_ok == 2): -2 vs 2
  [https_incomplete FAILED]
main/event_closed_fd_poll: [forking] SKIPPED
util/getaddrinfo_AI_ADDRCONFIG: DISABLED
dns/lost: [forking] [Lost connection!] 
  [lost FAILED]
dns/last: [forking] `, "", Tests{"main/version": OK, "http/cancel_by_host": OK, "http/https_incomplete": Failed, "main/event_closed_fd_poll": Skipped, "util/getaddrinfo_AI_ADDRCONFIG": Skipped, "dns/lost": Failed, "dns/last": Failed}},
		"curl": {curl, `test 0001...[HTTP GET]
--pd---e--- OK (1   out of 4 , remaining: 00:11, took 1.049s, duration: 00:01)
test 0002...[HTTP GET with user]

 2: data FAILED:
test 0003 SKIPPED: no gnutls
test 0004...[FTP]

curl returned 56, when expecting 0
 exit FAILED
TESTDONE: 4 tests were considered during 4 seconds.
`, "", Tests{"0001": OK, "0002": Failed, "0003": Skipped, "0004": Failed}},
	} {
		got, err := tt.parse(tt.output, tt.results)
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tt.want)
		}
	}
}

// TestDiffering: a test that only one of two runs has differs.
func TestDiffering(t *testing.T) {
	tcp := Tests{"a": OK, "b": OK, "c": Failed, "d": Skipped, "e": OK}
	mode := Tests{"a": OK, "b": Failed, "c": OK, "d": Skipped, "f": OK}
	if got, want := differing(tcp, mode), []string{"b", "c", "e", "f"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestAlways: a difference counts if no run of the mode has come to a result of TCP.
func TestAlways(t *testing.T) {
	for _, tt := range []struct {
		tcp, mode []Status
		want      bool
	}{
		{[]Status{OK}, []Status{Failed}, true},
		{[]Status{OK, OK, OK}, []Status{Failed, Missing, Failed}, true},
		{[]Status{OK, OK}, []Status{Failed, OK}, false},
		{[]Status{OK, Failed}, []Status{Failed, Failed}, false},
	} {
		d := Difference{Test: "test", TCP: tt.tcp, Mode: tt.mode}
		if d.Always() != tt.want {
			t.Errorf("%s: %v", &d, d.Always())
		}
	}
}

// TestSuites: each suite says what it needs, and each job how long it may take, how it is
// read and how it is told from the others.
func TestSuites(t *testing.T) {
	names := map[string]bool{}
	for _, s := range All() {
		if names[s.Name] || s.Version == "" || len(s.Jobs) == 0 || s.Source != "" && s.Build == "" {
			t.Errorf("suite %q is there twice, or lacks version, jobs or build", s.Name)
		}
		names[s.Name] = true
		jobs := map[string]bool{}
		for _, j := range s.Jobs {
			if jobs[j.Name] || j.Limit == 0 || j.Parse == nil || len(j.Argv) == 0 {
				t.Errorf("%s, job %q is there twice, or lacks limit, parser or program", s.Name, j.Name)
			}
			jobs[j.Name] = true
		}
	}
}
