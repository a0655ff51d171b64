// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// resetNet is a network whose peer has sent some data and then reset the connection. Writing
// fails at once, and the data takes its time.
type resetNet struct {
	slowNet
	rest string
}

func (n *resetNet) ReadFrom(io.Reader) (int64, error) { return 0, syscall.ECONNRESET }

func (n *resetNet) WriteTo(app io.Writer) (total int64, err error) {
	for part := range strings.Lines(n.rest) {
		select {
		case <-time.After(n.pause):
		case <-n.over:
			return total, syscall.ECONNRESET
		}
		k, err := io.WriteString(app, part)
		if total += int64(k); err != nil {
			return total, err
		}
	}
	return total, syscall.ECONNRESET
}

// TestRestBeforeReset: a program reads what arrived before a reset by the peer, also if a write
// of the program finds out about the reset first.
func TestRestBeforeReset(t *testing.T) {
	checkLeaks(t)
	p, app := socketpair(t)
	n := &resetNet{rest: strings.Repeat("the answer\n", 10)}
	n.pause, n.over = time.Millisecond, make(chan struct{})
	r := &Relay{App: app, Net: n, Broken: func(syscall.Errno) {
		_ = unix.Sendto(p.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}}
	p.write("request")
	if !r.Run(nil) {
		t.Error("the relay says that it was no reset")
	}
	p.read(n.rest)
	p.wantEnd(unix.ECONNRESET)
}
