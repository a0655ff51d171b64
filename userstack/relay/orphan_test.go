// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slowNet is a network whose peer takes 4 KiB and then pauses.
type slowNet struct {
	pause   time.Duration
	got     bytes.Buffer
	once    sync.Once
	over    chan struct{}
	aborted bool
}

func (n *slowNet) ReadFrom(app io.Reader) (int64, error) {
	total := int64(0)
	for {
		k, err := io.CopyN(&n.got, app, 4<<10)
		if total += k; err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		select {
		case <-time.After(n.pause):
		case <-n.over:
			return total, net.ErrClosed
		}
	}
}

func (n *slowNet) WriteTo(io.Writer) (int64, error) { <-n.over; return 0, net.ErrClosed }
func (n *slowNet) CloseWrite() error                { return nil }
func (n *slowNet) Close() error                     { n.once.Do(func() { close(n.over) }); return nil }
func (n *slowNet) Abort() error                     { n.once.Do(func() { n.aborted = true; close(n.over) }); return nil }
func (n *slowNet) Done() <-chan struct{}            { return nil }

// TestLauncherLeavesSlowPeer: what a program has left behind is sent as long as the peer takes
// some of it, as TCP does, and not only for a time.
func TestLauncherLeavesSlowPeer(t *testing.T) {
	const limit = 600 * time.Millisecond
	play := func(t *testing.T, pause time.Duration, words string) (*slowNet, bool) {
		checkLeaks(t)
		p, end := unixProgram(t)
		conn, err := File(end)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(end)
		app, err := NewSocket(conn)
		if err != nil {
			t.Fatal(err)
		}
		n := &slowNet{pause: pause, over: make(chan struct{})}
		gone := make(chan struct{})
		r := &Relay{App: app, Net: n, LauncherGone: gone, OrphanLimit: limit}
		p.write(words)
		p.close()
		close(gone)
		return n, r.Run(nil)
	}
	words := strings.Repeat("last words ", 6<<10)
	if n, reset := play(t, limit/6, words); reset || n.aborted || n.got.String() != words {
		t.Errorf("a slow peer got %d of %d bytes, reset: %v", n.got.Len(), len(words), reset)
	}
	if n, _ := play(t, time.Hour, words); !n.aborted {
		t.Error("a peer that takes nothing is waited for")
	}
}
