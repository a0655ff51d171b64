// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// control has room for the largest number of descriptors of one message (SCM_MAX_FD). If
// there were less room, the kernel would close the other descriptors within the call.
type control [(16 + 253*4 + 7) / 8 * 8 / 8]uint64

var controls = sync.Pool{New: func() any { return new(control) }}

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

// drop closes the descriptors in control messages.
func drop(b []byte) {
	msgs, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not SCM_RIGHTS
		}
		go func() {
			for _, fd := range fds {
				_ = Close(fd)
			}
		}()
	}
}
