// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"smcr/userstack/conn"
)

// TestOverlayIsNotRead: whatever a program calls, it gets nothing from an RMB element that
// was overwritten after its data had been announced. The connection is reset on both
// sides (RFC 7609, sections 4.2 and 4.4.1).
func TestOverlayIsNotRead(t *testing.T) {
	for name, read := range map[string]func(r *Reader) (int, error){
		"Read":      func(r *Reader) (int, error) { return r.Read(make([]byte, 1000)) },
		"Skip":      func(r *Reader) (int, error) { return r.Skip(1000) },
		"Available": func(r *Reader) (int, error) { return r.Available() },
		"Peek": func(r *Reader) (int, error) {
			a, b, _, err := r.Peek(1)
			return len(a) + len(b), err
		},
		"Take": func(r *Reader) (int, error) {
			p, err := r.Take(false)
			return len(p.A) + len(p.B), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, nil)
				b.server.s.EyeCatcher = true
				c, s := b.connect()
				b.exchange(c, s, pattern(1, 100)) // the eye catcher is settled
				if _, err := c.Write(pattern(2, 3000)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(settled)
				if n, err := s.In.Available(); n != 3000 || err != nil {
					t.Fatalf("%d bytes can be read, %v", n, err)
				}
				s.g.do(func(time.Time) {
					for r := range s.g.mem.regions {
						if r.lnk != nil {
							r.mem[0] ^= 1
						}
					}
				})
				n, err := read(&s.In)
				if n != 0 || !errors.Is(err, conn.ErrReset) || !errors.Is(err, conn.ErrProtocol) {
					t.Errorf("%d bytes, %v, want a reset", n, err)
				}
				if err := b.ended(c); !errors.Is(err, conn.ErrReset) {
					t.Errorf("the peer's connection ends with %v, want a reset", err)
				}
			})
		})
	}
}

// TestShutThenClose: data that has arrived and that nobody has had the time to discard does not
// make Close a reset.
func TestShutThenClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, s := b.connect()
		s.In.Shut()
		synctest.Wait() // whoever carries out actions of the group would wait for the lock below
		s.g.mu.Lock()
		if _, err := c.Write(pattern(1, 100)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
		s.g.poll() // takes in the message, and carries out nothing
		s.g.mu.Unlock()
		if !s.End.Close() {
			t.Error("closed before")
		}
		b.finish(c, s)
	})
}
