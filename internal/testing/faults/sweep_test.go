// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// A sweep is a kind of call, and the errors with which it fails, one after the other.
// EAGAIN is not among the errors of calls of non-blocking sockets: there it promises an
// event of epoll that does not come after a false one.
type sweep struct {
	call   string
	errors []unix.Errno
}

var sweeps = []sweep{
	{"accept4", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}},
	{"bind", []unix.Errno{unix.ENOMEM}},
	{"bpf", []unix.Errno{unix.ENOMEM, unix.EMFILE}},
	{"connect", []unix.Errno{unix.ENOBUFS, unix.EADDRNOTAVAIL}},
	{"dup", []unix.Errno{unix.EMFILE}},
	{"epoll_create1", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}},
	{"epoll_ctl", []unix.Errno{unix.ENOMEM, unix.ENOSPC}},
	{"eventfd2", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}},
	{"fcntl", []unix.Errno{unix.EMFILE}},
	{"getsockopt", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"ioctl", []unix.Errno{unix.ENOMEM}},
	{"listen", []unix.Errno{unix.ENOBUFS}},
	{"madvise", []unix.Errno{unix.ENOMEM, unix.EAGAIN}},
	{"memfd_create", []unix.Errno{unix.EMFILE, unix.ENOMEM}},
	{"mmap", []unix.Errno{unix.ENOMEM, unix.EAGAIN}},
	{"openat", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}},
	{"pidfd_getfd", []unix.Errno{unix.EMFILE, unix.ENFILE}},
	{"pidfd_open", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}},
	{"pipe2", []unix.Errno{unix.EMFILE, unix.ENFILE}},
	{"process_vm_readv", []unix.Errno{unix.ENOMEM}},
	{"process_vm_writev", []unix.Errno{unix.ENOMEM}},
	{"recvmmsg", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"recvmsg", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"sendmmsg", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"sendmsg", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"sendto", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"setsockopt", []unix.Errno{unix.ENOBUFS, unix.ENOMEM}},
	{"socket", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}},
	{"socketpair", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}},
	{"timerfd_create", []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}},
}

// full reports whether all faults are tested, not only a part.
func full() bool { return os.Getenv("SMCR_FAULTS") == "full" }

// sampleTime is how long each sweep takes at most if only a part is tested.
const sampleTime = 5 * time.Second

// skipShort skips a test in the short form of tests.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("makes faults for seconds: run `make test-all`, or `make faults` for all of them")
	}
}

// skipPart skips a test that is number i of n similar ones, unless all are tested or the
// seed selects this one.
func skipPart(t *testing.T, i, n int) {
	t.Helper()
	skipShort(t)
	if !full() && seedOf(t)%uint64(n) != uint64(i) {
		t.Skip("not in the part that the seed selects: run `make faults`")
	}
}

// A fault is one call that fails with one error.
type fault struct {
	call  string
	errno unix.Errno
}

func (f fault) String() string { return fmt.Sprintf("%s of %s", unix.ErrnoName(f.errno), f.call) }

// chosen returns the faults to test, in the order of the test. SMCR_FAULTS_ONLY=CALL or
// CALL:ERRNO selects some.
func chosen(t *testing.T) (list []fault) {
	call, name, _ := strings.Cut(os.Getenv("SMCR_FAULTS_ONLY"), ":")
	for _, s := range sweeps {
		for _, e := range s.errors {
			if (call == "" || call == s.call) && (name == "" || name == unix.ErrnoName(e)) {
				list = append(list, fault{s.call, e})
			}
		}
	}
	if !full() {
		seed := seedOf(t)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}

// seedOf returns the seed of the part that is tested: SMCR_FAULTS_SEED, or another one each
// day.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().Unix() / (24 * 60 * 60))
	if s := os.Getenv("SMCR_FAULTS_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("SMCR_FAULTS_SEED=%d", seed)
	return seed
}

// places returns which of n calls fail: the first 20, then 20 others in equal distances. If
// only a part is tested, it is one of them.
func places(n int, random *rand.Rand) (list []int) {
	step := 1
	for k := 1; k <= n; k += step {
		list = append(list, k)
		if k >= 20 {
			step = max(1, (n-20)/20)
		}
	}
	if !full() && len(list) > 0 {
		return []int{list[random.IntN(len(list))]}
	}
	return list
}

// counted runs the scenario of a sweep without a fault, and returns how often it makes each
// call.
func counted(t *testing.T, run func(request) (Row, answer)) map[string]int {
	t.Helper()
	r, a := run(request{})
	if !r.Good() || r.Failed > 0 || r.TCP > 0 {
		t.Fatalf("without a fault: %+v", r)
	}
	t.Logf("calls: %v", a.Counts)
	return a.Counts
}

// sweepAll makes each fault at each place of a scenario. run runs the scenario once with a
// fault, and settle checks afterwards that all is as before.
func sweepAll(t *testing.T, what, must string, run func(request) (Row, answer), settle func(*Row) error) {
	counts := counted(t, run)
	random := rand.New(rand.NewPCG(seedOf(t), 2))
	deadline := time.Now().Add(sampleTime)
	for _, f := range chosen(t) {
		sum := Row{Fault: f.String(), Traffic: what, Outcome: must}
		for _, k := range places(counts[f.call], random) {
			if !full() && time.Now().After(deadline) {
				break
			}
			r, a := run(request{Call: f.call, Errno: int(f.errno), At: k})
			if a.Failed == 0 {
				continue // there were fewer calls than before
			}
			r.Runs = 1
			if err := settle(&r); err != nil {
				t.Errorf("%v, call %d, %s: %v", f, k, what, err)
			}
			if !r.Good() {
				t.Errorf("%v, call %d, %s: %+v", f, k, what, r)
			}
			sum.Add(r)
		}
		if sum.Runs > 0 {
			finish(t, sum)
		}
	}
}

// The traffic of a sweep.
const (
	sweepConns = 4
	sweepBytes = "200000"
)

// TestStackCalls fails calls of a running stack while connections begin, carry data and
// end, and while commands ask and change it.
func TestStackCalls(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			skipShort(t)
			l := newLab(t, netnstest.Options{})
			h, other := l.B, l.A
			if side == "server" {
				h, other = l.A, l.B
			}
			l.serve(other)
			i := l.serveInjected(h, "all")
			l.serveTraffic()
			if err := l.healthy(2); err != nil {
				t.Fatal(err)
			}
			l.measure()
			run := func(fault request) (Row, answer) {
				i.set(t, fault)
				// A command may fail. The stack must live on, and the next one must work.
				_, _ = l.smcr(h, "ueid", "add", "FAULTS")
				_, _ = l.smcr(h, "stats", "show")
				r, log := l.client(sweepConns, "-bytes", sweepBytes)
				_, _ = l.smcr(h, "connection", "list")
				a := i.set(t, request{})
				if !r.Good() {
					t.Logf("%+v: %s", fault, log)
				}
				_, _ = l.smcr(h, "ueid", "del", "FAULTS")
				return r, a
			}
			sweepAll(t, "stack of the "+side, "the connection is SMC-R or TCP, or ends with an error", run, l.settle)
		})
	}
}

// TestRunCalls fails calls of smcr run of a client, from its start on.
func TestRunCalls(t *testing.T) {
	skipShort(t)
	l := newServedLab(t)
	run := func(fault request) (Row, answer) {
		i := inject(t, l.B, "all", fault, l.clientArgs(sweepConns, "-bytes", sweepBytes)...)
		err := i.Wait(trafficTime)
		late := !ended(i.Process)
		a := i.last(t)
		i.Kill()
		r := outcome(sweepConns, i.Log(), late, err)
		if !r.Good() {
			t.Logf("%+v: %s", fault, i.Log())
		}
		return r, a
	}
	sweepAll(t, "smcr run of the client", "the connection is SMC-R or TCP, or fails; or smcr run says why the program does not run", run, l.settle)
}

// runtimeStatus is the exit status of the Go runtime if it has no epoll.
const runtimeStatus = 2

// TestStackStart fails calls of a stack that starts. Either the stack serves, or it ends
// with a sentence and exit status 1.
func TestStackStart(t *testing.T) {
	skipShort(t)
	l := newLab(t, netnstest.Options{})
	run := func(fault request) (Row, answer) {
		i := inject(t, l.A, "all", fault, bin("smcr"), "serve")
		var r Row
		err := netnstest.Until(startTime, func() error {
			if ended(i.Process) {
				return nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), commandTime)
			defer cancel()
			_, err := l.A.Output(ctx, bin("smcr"), "--backend", "user", "info")
			return err
		})
		if err != nil {
			r.Hung++
			t.Logf("%+v: the stack neither answers nor ends: %v\n%s", fault, err, i.Log())
		}
		if !ended(i.Process) {
			if err := i.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := i.Wait(SettleTime); err != nil {
				r.Hung++
				t.Logf("%+v: the stack does not end in order: %v\n%s", fault, err, i.Log())
			}
		} else if code := i.Cmd.ProcessState.ExitCode(); !saysWhy(i.Log()) || code != 1 && code != runtimeStatus {
			r.Hung++
			t.Logf("%+v: exit status %d without a sentence:\n%s", fault, i.Cmd.ProcessState.ExitCode(), i.Log())
		} else {
			r.Failed++
		}
		return r, i.last(t)
	}
	settle := func(r *Row) error {
		// Nothing of the stack remains, so the next one starts.
		h := l.A.Go(t, bin("smcr"), "serve")
		defer h.Kill()
		err := netnstest.Until(startTime, func() error {
			_, err := l.smcr(l.A, "info")
			return err
		})
		if err != nil {
			r.Leaked++
		}
		if err := h.Signal(unix.SIGTERM); err != nil {
			return err
		}
		return h.Wait(SettleTime)
	}
	sweepAll(t, "a stack that starts", "it serves, or ends with a sentence and exit status 1", run, settle)
}
