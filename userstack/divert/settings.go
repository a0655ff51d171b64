// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// settings are those of the namespace of inner and outer, all of them 0.
var settings = []string{
	// The addresses of both ends of a connection come and go by one device. A device that comes later has the default.
	"ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter",
	// A connection that is over leaves nothing: the program, or the peer, may use its ports again.
	"ipv4/tcp_max_tw_buckets",
	// The ports are those of others.
	"ipv4/ip_unprivileged_port_start",
}

// setUpNamespace makes the settings of the namespace in which it runs. It comes before the devices.
func setUpNamespace() error {
	err := writeSettings(unix.AT_FDCWD, "/proc/sys/net/")
	if !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return err
	}
	// A sandbox shows /proc/sys for reading only, so that nobody changes the settings of the host. A tree of this
	// process's own, which has no name, has those of the thread's namespace, too.
	proc, perr := newProc()
	if perr != nil {
		return errors.Join(err, perr)
	}
	defer unix.Close(proc)
	return writeSettings(proc, "sys/net/")
}

func writeSettings(dir int, below string) error {
	for _, name := range settings {
		fd, err := unix.Openat(dir, below+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte("0"))
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("divert: %w", &os.PathError{Op: "write", Path: "/proc/sys/net/" + name, Err: err})
		}
	}
	return nil
}

// newProc returns a tree of procfs that is not mounted anywhere. It ends with the descriptor.
func newProc() (int, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("divert: procfs: %w", os.NewSyscallError("fsopen", err))
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("divert: procfs: %w", os.NewSyscallError("fsconfig", err))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return fd, os.NewSyscallError("fsmount", err)
}
