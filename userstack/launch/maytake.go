// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// PtraceScope has Yama's restriction of ptrace: 0 for none; from 1 on, a process without
// CAP_SYS_PTRACE may access its descendants only, from 2 on nobody, and with 3 not even a
// privileged process may. A kernel without Yama has no such file.
const PtraceScope = "/proc/sys/kernel/yama/ptrace_scope"

// mayTake returns an error if this process may not copy descriptors of a process that executes the
// program next: without this, each connection would be TCP and slower than without a launcher.
// A sandbox, Yama or another security module can forbid it. A launcher for the kernel's SMC
// makes sockets itself.
func mayTake(cfg *Config, pid int) error {
	if cfg.Kernel != nil {
		return nil
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return cannotTake("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	fd, err := withRoom(func() (int, error) { return unix.PidfdGetfd(pidfd, 0, 0) })
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case !errors.Is(err, unix.EBADF): // it has no such descriptor, and may be asked for others
		return cannotTake("pidfd_getfd", err)
	}
	return nil
}

func cannotTake(call string, err error) error {
	const text = "the launcher cannot take the program's sockets"
	b, _ := os.ReadFile(PtraceScope)
	if scope, _ := strconv.Atoi(string(bytes.TrimSpace(b))); errors.Is(err, unix.EPERM) && scope > 1 {
		return fmt.Errorf("%s: kernel.yama.ptrace_scope is %d, and must be 0 or 1: %w", text, scope, os.NewSyscallError(call, err))
	}
	return fmt.Errorf("%s: a sandbox or the kernel does not permit it: %w", text, os.NewSyscallError(call, err))
}
