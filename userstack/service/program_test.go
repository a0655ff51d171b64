// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
)

// testTime bounds each wait of a test.
const testTime = socktest.Patience

// program is the program's end of a relayed connection.
type program struct {
	t  testing.TB
	fd int
}

func (p *program) write(s string) { p.t.Helper(); socktest.Write(p.t, p.fd, s) }

func (p *program) send(s string) (int, error) { return socktest.Send(p.fd, s) }

// read wants exactly want.
func (p *program) read(want string) { p.t.Helper(); socktest.Read(p.t, p.fd, want) }

// wantEnd wants the next read to find no data but the end: err, nil being the
// end of file.
func (p *program) wantEnd(want error) { p.t.Helper(); socktest.WantEnd(p.t, p.fd, want) }

// wantUnread waits until n bytes lie unread in the program's socket.
func (p *program) wantUnread(n int) { p.t.Helper(); socktest.WantUnread(p.t, p.fd, n) }

func (p *program) shutdown() { p.t.Helper(); socktest.Shutdown(p.t, p.fd) }

func (p *program) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// socketpair makes a connection as a launcher does.
func socketpair(t testing.TB) (*program, *net.UnixConn) {
	t.Helper()
	fd, end := socktest.Pair(t)
	p := &program{t: t, fd: fd}
	t.Cleanup(p.close)
	c, err := fileConn(end)
	if err != nil {
		t.Fatal(err)
	}
	return p, c.(*net.UnixConn)
}

// tcpPair makes a TCP connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) { return socktest.TCPPair(t) }

// allStacks returns the stacks of all goroutines.
func allStacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// relayStacks returns the stacks of the goroutines that a relay has.
func relayStacks() string {
	var out []string
	for s := range strings.SplitSeq(allStacks(), "\n\n") {
		if strings.Contains(s, "relay.(*Relay)") || strings.Contains(s, "service.(*Service)") {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n\n")
}

func countFDs(t testing.TB) int { return len(openFDs(t)) }

// openFDs returns what the descriptors are, without that which tells.
func openFDs(t testing.TB) (fds []string) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if link, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil {
			fds = append(fds, n.Name()+" "+link)
		}
	}
	return fds
}

// checkLeaks wants, at the end of the test, no goroutine of this package and
// no more descriptors than now.
func checkLeaks(t testing.TB) {
	t.Helper()
	// The runtime's poller has descriptors of its own from its first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
	rdmaverbs.ZeroBuffer(nil) // so has the zeroing of buffers
	before := countFDs(t)
	t.Cleanup(func() {
		testkind.Eventually(t, "goroutines or descriptors left", func() (any, bool) {
			s, fds := relayStacks(), openFDs(t)
			saw := fmt.Sprintf("%d descriptors, %d before: %v\n%s", len(fds), before, fds, s)
			return saw, s == "" && len(fds) <= before
		})
	})
}
