// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// inherited returns the descriptors with which this process was started.
func inherited() (fds []int) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && inheritable(fd) {
			fds = append(fds, fd)
		}
	}
	return fds
}

func inheritable(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// withFiles lists the descriptors of a child: those that it is to inherit anyway, and these. Each keeps its number, so that these
// do not replace one that the program inherits. They are listed, in place of clearing their close-on-exec flags, so that other
// children that are started meanwhile do not get them.
func withFiles(these ...int) []uintptr {
	files := make([]uintptr, slices.Max(these)+1)
	for fd := range files {
		files[fd] = ^uintptr(0)
		if slices.Contains(these, fd) || inheritable(fd) {
			files[fd] = uintptr(fd)
		}
	}
	return files
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// leave closes descriptors that the program has now.
func leave(fds []int) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	for _, fd := range fds {
		if fd <= 2 {
			_ = unix.Dup3(null, fd, 0)
		} else {
			_ = unix.Close(fd)
		}
	}
}
