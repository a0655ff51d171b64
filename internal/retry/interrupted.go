// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"syscall"
)

// Interrupted calls f, and again as long as a signal has interrupted it. It returns the last error of f.
func Interrupted(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
