// SPDX-License-Identifier: Apache-2.0

package lastclose

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the reader of a BPF ring buffer (Documentation/bpf/ringbuf.rst). The package
// github.com/cilium/ebpf/ringbuf waits in a thread of its own, with calls that a confined
// stack does not have. A reader here is part of an epoll set.
//
// The map has a page with the position of the consumer, one with that of the producer, and
// the data, twice in a row, so that a record does not wrap.
type ring struct {
	consumer, producer []byte // mappings
	data               []byte // of producer
	mask               uint64
}

// A record begins with its length, with two flags, and four bytes that are of no use here.
const (
	recordHeader = 8
	recordBusy   = 1 << 31 // being written
	recordVoid   = 1 << 30 // to be skipped
)

func openRing(fd, size int) (*ring, error) {
	page := os.Getpagesize()
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	producer, err := unix.Mmap(fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Munmap(consumer)
		return nil, os.NewSyscallError("mmap", err)
	}
	return &ring{consumer: consumer, producer: producer, data: producer[page:], mask: uint64(size - 1)}, nil
}

// read calls f with each report that is complete.
func (r *ring) read(f func(number uint64, unread bool)) {
	consumed := (*uint64)(unsafe.Pointer(&r.consumer[0]))
	produced := (*uint64)(unsafe.Pointer(&r.producer[0]))
	pos := *consumed // only this function changes it
	for pos < atomic.LoadUint64(produced) {
		rec := r.data[pos&r.mask:]
		n := atomic.LoadUint32((*uint32)(unsafe.Pointer(&rec[0])))
		if n&recordBusy != 0 {
			return
		}
		length := uint64(n &^ (recordBusy | recordVoid))
		if n&recordVoid == 0 && length == reportSize-recordHeader {
			f(binary.NativeEndian.Uint64(rec[recordHeader:]), binary.NativeEndian.Uint64(rec[recordHeader+8:]) != 0)
		}
		pos += (recordHeader + length + 7) &^ 7
		atomic.StoreUint64(consumed, pos)
	}
}

func (r *ring) close() error {
	err := unix.Munmap(r.producer)
	if e := unix.Munmap(r.consumer); err == nil {
		err = e
	}
	return os.NewSyscallError("munmap", err)
}
