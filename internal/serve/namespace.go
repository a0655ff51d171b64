// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A namespace is what names a network namespace on this machine.
type namespace struct {
	ino    uint64 // what its users see (net:[INO]); used again after its end
	cookie uint64 // never used again until the machine starts anew
}

// ownNamespace returns the network namespace of the calling thread.
func ownNamespace() (namespace, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return namespace{}, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return namespace{}, fmt.Errorf("cookie of the network namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return namespace{}, fmt.Errorf("network namespace: %w", err)
	}
	return namespace{st.Ino, cookie}, nil
}
