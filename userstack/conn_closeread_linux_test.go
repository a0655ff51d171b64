// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"io"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestCloseReadRoCE: CloseRead ends a Read that waits, also one whose goroutine handles packets
// meanwhile, and the peer can write more than a window.
func TestCloseReadRoCE(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	testEngines(t, func(t *testing.T, cfg Config) {
		h := newHosts(t, p, cfg)
		c, s, err := h.connect(p)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() { read <- readByte(s) }()
		// Real time: the reader waits by then, most likely. Otherwise it finds the end at once.
		time.Sleep(50 * time.Millisecond)
		if err := s.CloseRead(); err != nil {
			t.Error(err)
		}
		select {
		case err := <-read:
			if err != io.EOF {
				t.Errorf("read: %v, want EOF", err)
			}
		case <-time.After(testkind.Patience):
			t.Error("the reader waits on")
		}
		_ = c.SetWriteDeadline(time.Now().Add(testkind.Patience))
		if n, err := c.Write(pattern(1, 4<<20)); err != nil {
			t.Errorf("the peer wrote %d, %v", n, err)
		}
		c.Close()
		// The peer says that it has closed when all of its data has been delivered.
		err = netnstest.Until(testkind.Patience, func() error {
			var states []smc.ConnState
			for _, row := range list(t, h.server.Control().Connections) {
				if states = append(states, row.State); row.State == smc.StateAppCloseWait1 {
					return nil
				}
			}
			return fmt.Errorf("connections are in the states %v", states)
		})
		if err != nil {
			t.Error(err)
		}
		s.Close()
		for _, x := range []*Conn{c, s} {
			select {
			case <-x.Done():
				if err := x.Err(); err != nil {
					t.Errorf("the connection ended with %v", err)
				}
			case <-time.After(testkind.Patience):
				t.Error("the connection does not end")
			}
		}
	})
}
