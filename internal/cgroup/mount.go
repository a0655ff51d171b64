// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// OpenTop returns the top of the tree in a mount that belongs to no mount namespace, and lasts until the file is closed. It needs
// CAP_SYS_ADMIN.
func OpenTop() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(mount)
	// The descriptor of the mount itself is an O_PATH one, which older kernels do not accept as a cgroup.
	top, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	return os.NewFile(uintptr(top), "cgroup2 (private mount)"), nil
}

// own is OpenTop for the life of this process.
var own = sync.OnceValues(OpenTop)

// ownPath returns where it is.
func ownPath() (string, error) {
	f, err := own()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), nil
}
