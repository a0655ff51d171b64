// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
)

// become makes this process the program.
func become(c child) {
	runtime.LockOSThread()
	path, argv := c.rest[0], c.rest[1:]
	if n, _, err := receive(c.sock, make([]byte, 1)); err != nil || n == 0 { // the runner has ended
		os.Exit(program.ExitNotExecutable)
	}
	env := asStarted(os.Environ(), strconv.Itoa(c.other))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &c.mask, nil)
	var e syscall.Errno
	errors.As(program.Exec(path, argv, env), &e)
	_ = unix.Sendto(c.sock, binary.LittleEndian.AppendUint32(nil, uint32(e)), unix.MSG_NOSIGNAL, nil)
	os.Exit(program.ExitNotExecutable)
}

// asStarted returns the environment of the program if the variables of a service manager name the waiter: it takes the program for
// that process.
func asStarted(env []string, waiter string) []string {
	own := strconv.Itoa(os.Getpid())
	env = slices.Clone(env)
	for i, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID":
			if value == waiter {
				env[i] = name + "=" + own
			}
		}
	}
	// The number of the waiter's pidfd: systemd looks at it only if it is there.
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "LISTEN_PIDFDID=") })
}
