// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: forbid NUMBER ERRNO|kill PROGRAM ARGUMENT…")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "forbid:", forbid(os.Args[1], os.Args[2], os.Args[3:]))
	os.Exit(127)
}

// forbid returns only after an error.
func forbid(call, how string, argv []string) error {
	nr, err := strconv.ParseUint(call, 10, 32)
	if err != nil {
		return err
	}
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	if how != "kill" {
		errno, err := strconv.ParseUint(how, 10, 12)
		if err != nil {
			return err
		}
		action = unix.SECCOMP_RET_ERRNO | uint32(errno)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number is first in struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // the filter is that of this thread
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	runtime.KeepAlive(program)
	return unix.Exec(path, argv, os.Environ())
}
