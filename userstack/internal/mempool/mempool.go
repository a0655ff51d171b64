// SPDX-License-Identifier: Apache-2.0

package mempool

import (
	"sync"
	"time"

	"smcr/rdmaverbs"
)

// A Pool keeps mapped memory for reuse, by size.
type Pool struct {
	freed func() // called when Trim has something to do later

	mu     sync.Mutex
	free   map[int][]pooled // the last one is used first
	bytes  int              // in free
	out    int              // in use
	closed bool             // nothing is kept any more
}

// pooled is memory that is kept.
type pooled struct {
	mem   []byte
	since time.Time
}

// maxKept limits what a pool keeps, in bytes.
const maxKept = 64 << 20

// New returns a pool. It calls freed when memory is kept that Trim may give back later.
func New(freed func()) *Pool {
	// ZeroBuffer opens a descriptor at its first call. Later there may be none left.
	rdmaverbs.ZeroBuffer(nil)
	return &Pool{freed: freed, free: map[int][]pooled{}}
}

// Get returns n zeroed bytes. Their pages take no memory until somebody writes to them.
func (p *Pool) Get(n int) ([]byte, error) {
	p.mu.Lock()
	if list := p.free[n]; len(list) > 0 {
		b := list[len(list)-1].mem
		p.free[n] = list[:len(list)-1]
		p.bytes -= n
		p.out += n
		p.mu.Unlock()
		rdmaverbs.ZeroBuffer(b)
		return b, nil
	}
	p.out += n
	p.mu.Unlock()
	b, err := rdmaverbs.AllocBuffer(n)
	if err != nil {
		p.mu.Lock()
		p.out -= n
		p.mu.Unlock()
	}
	return b, err
}

// Put takes back what Get returned. since is when it was last used.
func (p *Pool) Put(b []byte, since time.Time) {
	n := len(b)
	p.mu.Lock()
	p.out -= n
	if !p.closed && p.bytes+n <= maxKept {
		p.free[n] = append(p.free[n], pooled{b, since})
		p.bytes += n
		p.mu.Unlock()
		p.freed()
		return
	}
	p.mu.Unlock()
	_ = rdmaverbs.FreeBuffer(b)
}

// Trim unmaps what nobody has used since before, and reports whether the pool still
// keeps something.
func (p *Pool) Trim(before time.Time) (left bool) {
	var old []pooled
	p.mu.Lock()
	for n, list := range p.free {
		k := 0
		for k < len(list) && list[k].since.Before(before) {
			k++
		}
		old = append(old, list[:k]...)
		p.bytes -= k * n
		if k == len(list) {
			delete(p.free, n)
			continue
		}
		rest := copy(list, list[k:])
		clear(list[rest:])
		p.free[n] = list[:rest]
		left = true
	}
	p.mu.Unlock()
	for _, o := range old {
		_ = rdmaverbs.FreeBuffer(o.mem)
	}
	return left
}

// Close unmaps what the pool keeps. What is in use is unmapped by Put.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for n, list := range p.free {
		for _, b := range list {
			_ = rdmaverbs.FreeBuffer(b.mem)
		}
		delete(p.free, n)
	}
	p.bytes = 0
}

// InUse returns how many bytes Get has returned and Put has not taken back.
func (p *Pool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// Kept returns the memory that the pool keeps, for tests.
func (p *Pool) Kept() (list [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, same := range p.free {
		for _, f := range same {
			list = append(list, f.mem)
		}
	}
	return list
}
