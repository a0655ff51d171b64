// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// heldMost is how many held packets are read at a time. A call that returns fewer has found nothing more, so no other call asks.
const heldMost = 4

// heldReader has what recvmmsg(2) needs.
type heldReader struct {
	msgs [heldMost]heldMessage
	iovs [heldMost]unix.Iovec
	bufs [heldMost][mtu + ethLen]byte
}

// heldMessage is struct mmsghdr.
type heldMessage struct {
	hdr unix.Msghdr
	n   uint32
}

func newHeldReader() *heldReader {
	r := &heldReader{}
	for i := range r.msgs {
		r.iovs[i].Base = &r.bufs[i][0]
		r.iovs[i].SetLen(len(r.bufs[i]))
		r.msgs[i].hdr.Iov = &r.iovs[i]
		r.msgs[i].hdr.SetIovlen(1)
	}
	return r
}

// read calls f with each packet that has arrived. It does not wait.
func (r *heldReader) read(fd uintptr, f func(b []byte)) error {
	for n := heldMost; n == heldMost; {
		err := retry.Interrupted(func() error {
			k, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.msgs)), heldMost, unix.MSG_DONTWAIT, 0, 0)
			if n = int(k); errno != 0 {
				return os.NewSyscallError("recvmmsg", errno)
			}
			return nil
		})
		switch {
		case retry.NoMemory(err):
			time.Sleep(time.Millisecond)
			n = heldMost
			continue
		case err != nil:
			return err
		}
		for i := range n {
			f(r.bufs[i][:r.msgs[i].n])
		}
	}
	return nil
}
