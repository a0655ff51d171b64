// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// TestEndsEarly has a server that reads nothing, so that the client waits in a read and in a write, and then ends the connection:
// a reset is an error, whichever of the two has it, and an end of the stream is a corruption.
func TestEndsEarly(t *testing.T) {
	testkind.System(t)
	for _, test := range []struct {
		name      string
		end       func(*net.TCPConn) error
		corrupted bool
		want      string
	}{
		{"reset", func(c *net.TCPConn) error { _ = c.SetLinger(0); return c.Close() }, false, "connection reset"},
		{"end of the stream", (*net.TCPConn).CloseWrite, true, io.EOF.Error()},
		{"wrong bytes and a reset", func(c *net.TCPConn) error {
			if _, err := c.Write([]byte{0, 0, 0, 1, 0xff}); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond) // Real time: the client reads.
			_ = c.SetLinger(0)
			return c.Close()
		}, true, errWrong.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ended := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					ended <- err
					return
				}
				t.Cleanup(func() { c.Close() })
				time.Sleep(50 * time.Millisecond) // Real time: the client fills its buffers.
				ended <- test.end(c.(*net.TCPConn))
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			p := plan{Magic: magic, Seed: 1, Bytes: 64 << 20, Limit: uint64(10 * time.Second)}
			r := p.exchange(c.(*net.TCPConn), true)
			if r.Corrupted != test.corrupted || r.Hung || !strings.Contains(r.Error, test.want) {
				t.Errorf("%+v, want %q, corrupted %v", r, test.want, test.corrupted)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
