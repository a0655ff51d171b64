// SPDX-License-Identifier: Apache-2.0

package rdmaverbs

import (
	"encoding/binary"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pagemap has 8 bytes for each page of the process, in host byte order
// (admin-guide/mm/pagemap of the Linux kernel). Bit 63 is set if the page is in
// memory, and bit 62 if it is in swap. A page of a private mapping with neither
// bit was never written to and reads as zeros.
var pagemap = sync.OnceValue(func() *os.File {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil
	}
	return f
})

const (
	pagemapEntry = 8
	pagemapHeld  = 1<<63 | 1<<62
)

// ZeroBuffer zeroes b, which is memory from AllocBuffer or a part of it. It
// does not touch pages that were never written to, so they take no memory.
func ZeroBuffer(b []byte) {
	size := os.Getpagesize()
	f := pagemap()
	if f == nil || len(b) <= size {
		clear(b)
		return
	}
	var buf [64 * pagemapEntry]byte
	// The first page may begin before b.
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	head := int(at % uintptr(size))
	for len(b) > 0 {
		pages := min((head+len(b)+size-1)/size, len(buf)/pagemapEntry)
		entries := buf[:pages*pagemapEntry]
		if n, err := f.ReadAt(entries, int64(at/uintptr(size))*pagemapEntry); err != nil || n < len(entries) {
			clear(b)
			return
		}
		for i := range pages {
			n := min(size-head, len(b))
			if binary.NativeEndian.Uint64(entries[i*pagemapEntry:])&pagemapHeld != 0 {
				clear(b[:n])
			}
			b, at, head = b[n:], at+uintptr(n), 0
		}
	}
}

// DiscardBuffer gives the pages of b back to the system. b is memory from
// AllocBuffer or a part of it, and reads as zeros afterwards. Bytes outside b
// do not change: a page that is only partly in b is kept, and its part in b is
// zeroed. If there is a memory region on b, its device must have
// DeviceAttr.OnDemandPaging. It returns the error of madvise(2).
func DiscardBuffer(b []byte) error {
	size := uintptr(os.Getpagesize())
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	head := int((size - at%size) % size)
	if head >= len(b) {
		clear(b)
		return nil
	}
	whole := (len(b) - head) &^ int(size-1)
	clear(b[:head])
	ZeroBuffer(b[head+whole:])
	if whole == 0 {
		return nil
	}
	return unix.Madvise(b[head:][:whole], unix.MADV_DONTNEED)
}

// HeldBytes returns how many bytes of b take memory. b is memory from
// AllocBuffer, or a part of it that begins at the start of a page. A page of
// zeros that was only read also counts. HeldBytes returns -1 if the system does
// not provide this information.
func HeldBytes(b []byte) int {
	size := os.Getpagesize()
	f := pagemap()
	if f == nil {
		return -1
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	entries := make([]byte, (len(b)+size-1)/size*pagemapEntry)
	if n, err := f.ReadAt(entries, int64(at/uintptr(size))*pagemapEntry); err != nil || n < len(entries) {
		return -1
	}
	held := 0
	for i := 0; i < len(entries); i += pagemapEntry {
		if binary.NativeEndian.Uint64(entries[i:])&pagemapHeld != 0 {
			held += size
		}
	}
	return held
}
