// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"smcr/userstack/driver"
)

// TestClosedForgetsDeadline: a connection that has ended is not kept in memory until the
// deadline of its last read or write.
func TestClosedForgetsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		kept := func() []weak.Pointer[driver.Conn] {
			c, s := b.connect()
			for _, end := range []*Conn{c, s} {
				if err := end.SetDeadline(time.Now().Add(1000 * time.Hour)); err != nil {
					t.Error(err)
				}
			}
			b.finish(c, s)
			return []weak.Pointer[driver.Conn]{weak.Make(c.d), weak.Make(s.d)}
		}()
		time.Sleep(time.Minute) // other timers
		for range 3 {
			synctest.Wait()
			runtime.GC()
		}
		for i, p := range kept {
			if p.Value() != nil {
				t.Errorf("end %d of the connection is still in memory", i)
			}
		}
	})
}
