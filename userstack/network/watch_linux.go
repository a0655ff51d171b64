// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// A watch knows whether something has changed in the kernel since it was last asked. The kernel has put its report into
// the queue of the socket before the system call returns that changed it, so the answer is never late, and nothing has to read
// in the meantime: what no longer fits into the queue is a report, too.
type watch struct{ fd int }

// noWatch always reports a change.
var noWatch = watch{-1}

// openWatch returns a watch on groups of a netlink protocol, in the network namespace of the calling thread.
func openWatch(protocol int, groups ...int) (watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return noWatch, os.NewSyscallError("socket", err)
	}
	if err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err == nil {
		for _, g := range groups {
			if err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)); err != nil {
				break
			}
		}
	}
	if err != nil {
		unix.Close(fd)
		return noWatch, err
	}
	return watch{fd}, nil
}

// mostReports bounds the reports that are read for one question: beyond that, there is no end to changes.
const mostReports = 4096

// reports calls changed with the type of each report since the last call; 0 stands for any.
func (w watch) reports(changed func(typ uint16)) {
	var b [unix.NLMSG_HDRLEN]byte // the rest of a report is dropped
	for range mostReports {
		n, err := atonce.Read(w.fd, b[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS) || err == nil && n < len(b):
			changed(0)
		case err != nil:
			changed(0)
			return
		default:
			changed(binary.NativeEndian.Uint16(b[4:]))
		}
	}
	changed(0)
}

func (w watch) close() {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
}
