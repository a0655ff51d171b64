// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"sync"

	"smcr/rdmaverbs"
)

// numEvents is how many events the channel of a device holds.
const numEvents = 64

// asyncEvents is the channel of a device's asynchronous events. It is safe for
// concurrent use.
type asyncEvents struct {
	ch chan rdmaverbs.AsyncEvent

	mu    sync.Mutex
	ended bool
}

// newAsyncEvents returns an empty channel.
func newAsyncEvents() asyncEvents {
	return asyncEvents{ch: make(chan rdmaverbs.AsyncEvent, numEvents)}
}

// report sends ev to the channel. If the channel is full, the event is dropped:
// the reader finds the change with Device.Port. After end, report does nothing.
func (a *asyncEvents) report(ev rdmaverbs.AsyncEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	select {
	case a.ch <- ev:
	default:
	}
}

// end closes the channel.
func (a *asyncEvents) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	close(a.ch)
}
