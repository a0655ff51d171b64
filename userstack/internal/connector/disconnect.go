// SPDX-License-Identifier: Apache-2.0

package connector

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disconnect makes a TCP socket one that was never connected, from any state. A connection is
// reset, and the next one does not report that reset.
func Disconnect(fd int) error {
	var unspec unix.RawSockaddr // AF_UNSPEC is 0
	_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if e != 0 {
		err = e
	}
	return err
}
