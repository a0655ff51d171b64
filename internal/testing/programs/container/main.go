// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
)

// defaultCaps are the capabilities of root in a container without further options.
var defaultCaps = confine.Of(unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_MKNOD, unix.CAP_NET_RAW,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE)

// more are the capabilities that -cap can add.
var more = map[string]int{"NET_ADMIN": unix.CAP_NET_ADMIN, "BPF": unix.CAP_BPF, "SYS_PTRACE": unix.CAP_SYS_PTRACE, "SYS_ADMIN": unix.CAP_SYS_ADMIN}

// never is for calls that no capability of this program allows.
const never = -1

// refused has the calls that the profile refuses, and the capability that allows each.
var refused = map[int]int{
	unix.SYS_BPF:         unix.CAP_BPF,
	unix.SYS_KCMP:        unix.CAP_SYS_PTRACE,
	unix.SYS_PIDFD_GETFD: unix.CAP_SYS_PTRACE, unix.SYS_PROCESS_MADVISE: unix.CAP_SYS_PTRACE,
	unix.SYS_SETNS: unix.CAP_SYS_ADMIN, unix.SYS_UNSHARE: unix.CAP_SYS_ADMIN, unix.SYS_MOUNT: unix.CAP_SYS_ADMIN, unix.SYS_UMOUNT2: unix.CAP_SYS_ADMIN,
	unix.SYS_MOVE_MOUNT: unix.CAP_SYS_ADMIN, unix.SYS_OPEN_TREE: unix.CAP_SYS_ADMIN, unix.SYS_FSOPEN: unix.CAP_SYS_ADMIN, unix.SYS_FSCONFIG: unix.CAP_SYS_ADMIN,
	unix.SYS_FSMOUNT: unix.CAP_SYS_ADMIN, unix.SYS_FSPICK: unix.CAP_SYS_ADMIN, unix.SYS_MOUNT_SETATTR: unix.CAP_SYS_ADMIN,
	unix.SYS_FANOTIFY_INIT: unix.CAP_SYS_ADMIN, unix.SYS_QUOTACTL: unix.CAP_SYS_ADMIN, unix.SYS_QUOTACTL_FD: unix.CAP_SYS_ADMIN,
	unix.SYS_SETHOSTNAME: unix.CAP_SYS_ADMIN, unix.SYS_SETDOMAINNAME: unix.CAP_SYS_ADMIN, unix.SYS_SYSLOG: unix.CAP_SYS_ADMIN,
	unix.SYS_PERF_EVENT_OPEN:   unix.CAP_SYS_ADMIN,
	unix.SYS_OPEN_BY_HANDLE_AT: never, unix.SYS_INIT_MODULE: never, unix.SYS_FINIT_MODULE: never, unix.SYS_DELETE_MODULE: never,
	unix.SYS_REBOOT: never, unix.SYS_ACCT: never, unix.SYS_VHANGUP: never, unix.SYS_CLOCK_SETTIME: never, unix.SYS_SETTIMEOFDAY: never,
	unix.SYS_GET_MEMPOLICY: never, unix.SYS_SET_MEMPOLICY: never, unix.SYS_MBIND: never, unix.SYS_MOVE_PAGES: never, unix.SYS_MIGRATE_PAGES: never,
	unix.SYS_KEYCTL: never, unix.SYS_ADD_KEY: never, unix.SYS_REQUEST_KEY: never, unix.SYS_USERFAULTFD: never, unix.SYS_PIVOT_ROOT: never,
	unix.SYS_KEXEC_LOAD: never, unix.SYS_SWAPON: never, unix.SYS_SWAPOFF: never,
	unix.SYS_IO_URING_SETUP: never, unix.SYS_IO_URING_ENTER: never, unix.SYS_IO_URING_REGISTER: never,
}

// lastCall is the last call that the profile knows. Later ones are refused.
const lastCall = unix.SYS_FUTEX_WAITV

// newNamespaces are the flags of clone that make namespaces.
const newNamespaces = unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWUTS

// profile returns the calls that are allowed with these capabilities.
func profile(caps confine.Caps) (calls []confine.Call) {
	cloneFlags := 0
	if runtime.GOARCH == "s390x" {
		cloneFlags = 1
	}
	for nr := range lastCall + 1 {
		c := confine.Call{Name: strconv.Itoa(nr), Nr: nr}
		need, is := refused[nr]
		switch {
		case is && (need == never || !caps.Has(need)):
			continue
		case caps.Has(unix.CAP_SYS_ADMIN):
		case nr == unix.SYS_CLONE3:
			continue // ENOSYS
		case nr == unix.SYS_CLONE:
			c.If = &confine.Cond{Arg: cloneFlags, Without: newNamespaces}
		}
		calls = append(calls, c)
	}
	return calls
}

func main() {
	caps := defaultCaps
	flag.Func("cap", "add this `capability`; may be repeated", func(name string) error {
		c, ok := more[name]
		if !ok {
			return fmt.Errorf("not one of %v", slices.Sorted(maps.Keys(more)))
		}
		caps |= confine.Of(c)
		return nil
	})
	flag.Parse()
	if err := run(caps, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func run(caps confine.Caps, argv []string) error {
	if len(argv) == 0 {
		return fmt.Errorf("no program, see %s -h", os.Args[0])
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if err := confine.KeepOnly(caps); err != nil {
		return err
	}
	if err := confine.Filter(profile(caps), confine.Refuse); err != nil {
		return err
	}
	return unix.Exec(path, argv, os.Environ())
}
