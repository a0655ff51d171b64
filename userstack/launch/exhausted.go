// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// roomTime is how long the launcher waits for descriptors or memory in the middle of
// a call of the program.
const roomTime = 200 * time.Millisecond

// exhausted reports whether an error says that the launcher or the machine has no
// descriptor or no memory left. It says nothing about the program's call.
func exhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// withRoom calls f again as long as it fails because something is exhausted, for at
// most roomTime, and returns its last result. Programs do not expect such an error of
// calls that need no descriptor and no memory in the kernel. A program in Go, for
// example, waits without end for its connection if getpeername() fails.
func withRoom[T any](f func() (T, error)) (T, error) {
	var v T
	err := retry.While(exhausted, roomTime, func() (err error) {
		v, err = f()
		return err
	})
	return v, err
}
