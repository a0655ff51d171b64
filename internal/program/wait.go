// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"syscall"

	"smcr/internal/retry"
)

// Wait waits for a child to end, or for what else wait4(2) options say, and returns what has become of it. pid is 0 if the options say
// not to wait, and there is nothing to say.
func Wait(child, options int) (pid int, ws syscall.WaitStatus, err error) {
	err = retry.Interrupted(func() (err error) {
		pid, err = syscall.Wait4(child, &ws, options, nil)
		return os.NewSyscallError("wait4", err)
	})
	return pid, ws, err
}
