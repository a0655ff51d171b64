// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"time"
)

// deadline is a point in time that can be moved while others wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	ch    chan struct{} // closed when the deadline has passed

	passed func() // called when it has passed; may be nil
}

func makeDeadline() deadline { return deadline{ch: make(chan struct{})} }

// set moves the deadline. The zero time removes it.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // the timer's function is running or has run
	}
	d.timer = nil
	passed := false
	select {
	case <-d.ch:
		passed = true
	default:
	}
	if t.IsZero() {
		if passed {
			d.ch = make(chan struct{})
		}
		return
	}
	if dur := time.Until(t); dur > 0 {
		if passed {
			d.ch = make(chan struct{})
		}
		ch := d.ch
		d.timer = time.AfterFunc(dur, func() {
			close(ch)
			d.tell()
		})
		return
	}
	if !passed {
		close(d.ch)
		d.tell()
	}
}

func (d *deadline) tell() {
	if d.passed != nil {
		d.passed()
	}
}

// wait returns the channel that is closed when the deadline passes.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) expired() bool {
	select {
	case <-d.wait():
		return true
	default:
		return false
	}
}
