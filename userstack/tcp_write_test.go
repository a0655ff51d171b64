// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// roomy is a TCP connection that has room for some bytes. What waits for more room ends by a deadline that has passed.
type roomy struct {
	TCPConn
	room  int
	err   error // of TryWrite
	got   []byte
	waits atomic.Int32 // calls that may wait
	past  chan struct{}
}

func (c *roomy) TryWrite(b []byte) (int, error) {
	n := min(c.room, len(b))
	c.got = append(c.got, b[:n]...)
	return n, c.err
}

func (c *roomy) Write(b []byte) (int, error) {
	if c.waits.Add(1); c.room > 0 {
		c.got = append(c.got, b...)
		return len(b), nil
	}
	<-c.past
	return 0, os.ErrDeadlineExceeded
}

func (c *roomy) SetWriteDeadline(t time.Time) error {
	if c.waits.Add(1); !t.IsZero() && t.Before(time.Now()) {
		close(c.past)
	}
	return nil
}

// TestWrites: a message for which there is room is written at once, without a deadline; the rest of one waits for room, until a context ends.
func TestWrites(t *testing.T) {
	message := []byte("a message")
	for _, test := range []struct {
		name  string
		room  int
		err   error
		ends  bool // the context
		want  error
		waits bool
	}{
		{name: "room for all", room: len(message)},
		{name: "room for a part", room: 3, waits: true},
		{name: "no room", ends: true, want: os.ErrDeadlineExceeded, waits: true},
		{name: "error", room: 2, err: syscall.ECONNRESET, want: syscall.ECONNRESET},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if test.ends {
				cancel()
			}
			c := &roomy{room: test.room, err: test.err, past: make(chan struct{})}
			w := tcpWrites{tcp: c, ends: [2]context.Context{ctx, context.Background()}}
			defer w.close()
			if err := w.send(message, time.Now().Add(time.Hour)); !errors.Is(err, test.want) {
				t.Errorf("%s: error %v, want %v", test.name, err, test.want)
			}
			if test.want == nil && !bytes.Equal(c.got, message) {
				t.Errorf("%s: wrote %q", test.name, c.got)
			}
			if (c.waits.Load() > 0) != test.waits || (w.stop[0] != nil) != test.waits {
				t.Errorf("%s: %d calls that may wait, contexts are watched: %t, want either: %t", test.name, c.waits.Load(), w.stop[0] != nil, test.waits)
			}
		})
	}
}
