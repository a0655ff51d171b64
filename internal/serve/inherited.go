// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeInherited closes the descriptors that this process was started with, but for the first ones, up to last. A process that
// 'smcr run' starts has those of the program, such as listening sockets and pipes, which must end with it. Whatever this process
// has opened itself is closed by execve, so it is told apart by that.
func closeInherited(last int) error {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	var errs error
	for _, e := range all {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= last {
			continue
		}
		// EBADF: that of the directory.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			errs = errors.Join(errs, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return errs
}
