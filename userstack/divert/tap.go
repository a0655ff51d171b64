// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTAP makes the device of held packets in the network namespace of the calling thread. The
// kernel computes checksums and cuts large packets for it. It ends with the file.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("divert: make device %s: %w", name, os.NewSyscallError("ioctl", err))
	}
	return os.NewFile(uintptr(fd), name), nil
}
