// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settings are those of the namespace of inner and outer. What is set here need not be set for each socket.
var settings = []struct{ name, value string }{
	// The addresses of both ends of a connection come and go by one device. A device that comes later has the default.
	{"ipv4/conf/all/rp_filter", "0"}, {"ipv4/conf/default/rp_filter", "0"},
	// A connection that is over leaves nothing: the program, or the peer, may use its ports again.
	{"ipv4/tcp_max_tw_buckets", "0"},
	// The ports are those of others.
	{"ipv4/ip_unprivileged_port_start", "0"},
	// A hop within the host has no path to find the rate of, as bbr does: what it measures there is how long threads wait
	// for a processor. outer has that of the host, once it carries anything (Splice).
	{congestion, "reno"},
	// What waits in a socket for the window of the other end: see buffers.go.
	{"ipv4/tcp_notsent_lowat", strconv.Itoa(unsent)},
	// What a router or a firewall on the way knows of outer, which is idle, does not expire.
	{"ipv4/tcp_keepalive_time", "15"}, {"ipv4/tcp_keepalive_intvl", "15"}, {"ipv4/tcp_keepalive_probes", "9"},
}

// congestion is the setting that says how connections find the rate of their path.
const congestion = "ipv4/tcp_congestion_control"

// hostCongestion returns that of the network namespace of the calling thread, or "".
func hostCongestion() string {
	b, _ := os.ReadFile("/proc/sys/net/" + congestion)
	return strings.TrimSpace(string(b))
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
	for _, s := range settings {
		fd, err := unix.Openat(dir, below+s.name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte(s.value))
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("divert: %w", &os.PathError{Op: "write", Path: "/proc/sys/net/" + s.name, Err: err})
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
