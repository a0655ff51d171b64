// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"smcr/nl"
)

// handOver has the connections of listening sockets with which this process was started, and the program will be, count to the
// program. Another process has made them, such as a service manager, so their cgroup is another one.
func handOver(ctx context.Context, c nl.Attacher, log *slog.Logger) {
	fds := inheritedListeners()
	if len(fds) == 0 {
		return
	}
	log = log.With("sockets", len(fds))
	if err := c.Listen(ctx, nl.Peer{}, fds); err != nil {
		log.Warn("the program was started with listening sockets, and their connections stay TCP", "err", err)
		return
	}
	log.Debug("the program was started with listening sockets")
}

// inheritedListeners returns the descriptors of listening TCP sockets that the program will have.
func inheritedListeners() (fds []int) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range all {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if isListening(fd) {
			fds = append(fds, fd)
		}
	}
	slices.Sort(fds)
	return fds
}

func isListening(fd int) bool {
	for option, values := range map[int][]int{
		unix.SO_DOMAIN: {unix.AF_INET, unix.AF_INET6}, unix.SO_PROTOCOL: {unix.IPPROTO_TCP, unix.IPPROTO_MPTCP}, unix.SO_ACCEPTCONN: {1},
	} {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || !slices.Contains(values, v) {
			return false
		}
	}
	return true
}
