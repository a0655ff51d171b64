// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// control has room for the largest number of descriptors of one message (SCM_MAX_FD), and for what
// the kernel adds to each message if anybody who shares the socket has asked for it: credentials, a
// security label of up to a page, and a descriptor of the sender's process. If there were less
// room, the kernel would close the other descriptors within the call.
type control [(1032 + 32 + 16 + 4096 + 24) / 8]uint64

// scmPidfd is SCM_PIDFD (linux/socket.h): the descriptor that SO_PASSPIDFD asks for.
const scmPidfd = 4

var controls = sync.Pool{New: func() any { return new(control) }}

// Receive calls a function that receives messages which may have descriptors: the kernel closes
// those for which the call has no room. Such a close is interrupted.
func Receive(call func()) { callFor(queueTime, call, Interrupt) }

// Drop reads what a socket has, until there is nothing more, and drops it with the descriptors that
// came with it. It does not wait. The error is EAGAIN, or nil at the end of the stream.
func Drop(fd int) error {
	buf := make([]byte, 64<<10)
	var msg unix.Msghdr
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	msg.Iov = &iov
	msg.SetIovlen(1)
	for {
		switch n, came, errno := Recvmsg(fd, &msg); {
		case errno == unix.EINTR:
		case errno != 0:
			return errno
		case n == 0 && !came:
			return nil
		}
	}
}

// Recvmsg calls recvmsg(2) and never waits, even without O_NONBLOCK: errno is EAGAIN if
// there is nothing to read. It closes descriptors that the message has, in a goroutine. came
// is true if the message had descriptors or other control messages. Recvmsg does not enter
// Go's scheduler, and leaves no pointer to control data in msg.
func Recvmsg(fd int, msg *unix.Msghdr) (n int, came bool, errno syscall.Errno) {
	c := controls.Get().(*control)
	msg.Control = (*byte)(unsafe.Pointer(c))
	msg.SetControllen(len(c) * 8)
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	size := int(msg.Controllen)
	msg.Control = nil
	msg.SetControllen(0)
	if errno == 0 && size > 0 {
		came = true
		drop(unsafe.Slice((*byte)(unsafe.Pointer(c)), size))
	}
	controls.Put(c)
	if errno != 0 {
		return 0, false, errno
	}
	return int(r), came || msg.Flags&unix.MSG_CTRUNC != 0, 0
}

// drop closes the descriptors in control messages: those that were sent, and that of the sender's
// process, which nobody has to send.
func drop(b []byte) {
	var fds []int32
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(b)))
		if h.Len < unix.SizeofCmsghdr || h.Len > uint64(len(b)) {
			break
		}
		if data := b[unix.SizeofCmsghdr:h.Len]; h.Level == unix.SOL_SOCKET && (h.Type == unix.SCM_RIGHTS || h.Type == scmPidfd) {
			for ; len(data) >= 4; data = data[4:] {
				fds = append(fds, int32(binary.NativeEndian.Uint32(data)))
			}
		}
		b = b[min(uint64(len(b)), (h.Len+7)&^7):]
	}
	if fds == nil {
		return
	}
	// No guard: it only closes descriptors.
	go func() {
		for _, fd := range fds {
			_ = Close(int(fd))
		}
	}()
}
