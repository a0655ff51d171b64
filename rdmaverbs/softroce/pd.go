// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"sync/atomic"

	"smcr/rdmaverbs"
)

// pd is a protection domain.
type pd struct {
	dev *Device
	// users is the number of memory regions and queue pairs. Close sets the bit
	// closedPD in it.
	users atomic.Int64
	shard atomic.Uint32 // of its queue pairs
}

const closedPD = 1 << 62

func (p *pd) acquire() error {
	for {
		n := p.users.Load()
		if n&closedPD != 0 {
			return fmt.Errorf("softroce: protection domain: %w", rdmaverbs.ErrClosed)
		}
		if p.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (p *pd) release() { p.users.Add(-1) }

// Close frees the domain. It fails with rdmaverbs.ErrBusy while memory
// regions or queue pairs of the domain remain.
func (p *pd) Close() error {
	if p.users.CompareAndSwap(0, closedPD) {
		return nil
	}
	if n := p.users.Load(); n&closedPD == 0 {
		return fmt.Errorf("softroce: protection domain has %d memory regions and queue pairs: close them first: %w", n, rdmaverbs.ErrBusy)
	}
	return fmt.Errorf("softroce: protection domain: %w", rdmaverbs.ErrClosed)
}

// RegisterMR registers buf with the rights in access. It fails with
// rdmaverbs.ErrInvalid for an empty buffer or for remote write without local
// write, rdmaverbs.ErrNoResources if the device has no room for another region,
// and rdmaverbs.ErrClosed if the domain is closed.
func (p *pd) RegisterMR(buf []byte, access rdmaverbs.Access) (rdmaverbs.MR, error) {
	if len(buf) == 0 {
		return nil, fmt.Errorf("softroce: memory region of no bytes: %w", rdmaverbs.ErrInvalid)
	}
	if access&rdmaverbs.AccessRemoteWrite != 0 && access&rdmaverbs.AccessLocalWrite == 0 {
		return nil, fmt.Errorf("softroce: remote write access needs local write access: %w", rdmaverbs.ErrInvalid)
	}
	if err := p.acquire(); err != nil {
		return nil, err
	}
	m := &mr{
		pd:     p,
		buf:    buf,
		addr:   newAddr(len(buf)),
		access: access,
		idle:   make(chan struct{}),
	}
	if err := p.dev.mrs.insert(m); err != nil {
		p.release()
		return nil, err
	}
	return m, nil
}
