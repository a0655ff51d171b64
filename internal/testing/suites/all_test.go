// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"maps"
	"path"
	"strings"
	"testing"
)

// TestReasons: a pattern is well formed and of a job that there is. It stands for the tests that are meant, in the modes
// that are meant, and not for their neighbours.
func TestReasons(t *testing.T) {
	all := maps.Clone(loopReasons)
	maps.Copy(all, reasons)
	jobs := map[string]bool{}
	for _, s := range All() {
		for _, j := range s.Jobs {
			jobs[s.Name+" "+j.Name] = true
		}
	}
	for pattern := range all {
		if _, err := path.Match(pattern, ""); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
		job := pattern[:strings.LastIndex(pattern, " ")]
		found := false
		for name := range jobs {
			ok, _ := path.Match(job, name)
			found = found || ok
		}
		if !found {
			t.Errorf("%s: no job is %q", pattern, job)
		}
	}
	loop, tcp := Mode{Name: "loop", Loop: true}, Mode{Name: "tcp"}
	const fdset = "twisted.internet.test.test_fdset.ReactorFDSetTestsBuilder_"
	for _, tt := range []struct {
		suite, job string
		mode       Mode
		test, want string
	}{
		{"twisted", "internet", loop, fdset + "PollReactorTests.test_lostFileDescriptor", wantsConnected},
		{"twisted", "internet", loop, fdset + "GIReactorTests.test_lostFileDescriptor", wantsConnected},
		{"twisted", "internet", tcp, fdset + "GIReactorTests.test_lostFileDescriptor", ""},
		{"twisted", "internet", loop, fdset + "PollReactorTests.test_removeAll", ""},
		{"twisted", "epoll", loop, fdset + "PollReactorTests.test_lostFileDescriptor", ""},
		{"twisted", "internet", loop, "twisted.internet.test.test_tcp.TCPPortTestsBuilder_GIReactorTests.test_serverGetHostOnIPv6", wantsConnected},
		{"twisted", "internet", loop, "twisted.internet.test.test_tcp.TCPPortTestsBuilder_GIReactorTests.test_serverGetHostOnIPv6ScopeID", ""},
		{"twisted", "internet", loop, "twisted.internet.test.test_newtls.ProducerTestsMixin_GIReactorTests.test_startTLSAfterRegisterProducerNonStreaming", wantsConnected},
		{"twisted", "internet", loop, "twisted.internet.test.test_newtls.ProducerTestsMixin_GIReactorTests.test_producerAfterStartTLS", ""},
		{"cpython", "test_asyncore", loop, "test.test_asyncore.TestAPI_UseIPv6Poll.test_connection_attributes", wantsFast},
		{"cpython", "test_asyncore", loop, "test.test_asyncore.TestAPI_UseUnixSocketsPoll.test_connection_attributes", ""},
		{"libevent", "poll", loop, "http/data_length_constraints", wantsUnbuffered},
		{"libevent", "poll", loop, "http/basic", ""},
	} {
		if why := reason(&Suite{Name: tt.suite}, &Job{Name: tt.job}, tt.mode, tt.test); why != tt.want {
			t.Errorf("%s %s in %s, %s: %q, want %q", tt.suite, tt.job, tt.mode.Name, tt.test, why, tt.want)
		}
	}
}
