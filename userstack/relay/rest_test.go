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
	*fakeStream
	rest string
}

func (n *resetNet) ReadFrom(io.Reader) (int64, error) { return 0, syscall.ECONNRESET }

func (n *resetNet) WriteTo(app io.Writer) (total int64, err error) {
	for part := range strings.Lines(n.rest) {
		select {
		case <-time.After(time.Millisecond):
		case <-n.done:
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
	p, app, reset := connect(t)
	n := &resetNet{newFakeStream(), strings.Repeat("the answer\n", 10)}
	r := &Relay{App: app, Net: n, ResetProgram: reset}
	p.write("request")
	if !r.Run(nil) {
		t.Error("the relay says that it was no reset")
	}
	p.read(n.rest)
	p.wantEnd(unix.ECONNRESET)
}
