// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
)

// A privilege is a capability that the stack keeps while it serves.
type privilege struct {
	number int
	name   string
	// lost says what does not work without it.
	lost string
}

// privileges are all capabilities that the stack keeps. docs/security.md has the same list
// (TestPrivileges).
var privileges = []privilege{
	{unix.CAP_NET_RAW, "CAP_NET_RAW", "software RoCE, without which the stack does not start"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "SMC for programs, large buffers of RoCE sockets, and the check for IPsec"},
	{unix.CAP_BPF, "CAP_BPF", "SMC for programs, which eBPF programs announce"},
}

// startPrivilege is what the stack needs until it serves.
var startPrivilege = privilege{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "SMC for programs: the stack makes a network namespace of its own at its start"}

// kept returns the capabilities of privileges.
func kept() (s confine.Caps) {
	for _, p := range privileges {
		s |= confine.Of(p.number)
	}
	return s
}

// ErrPrivilege means that this user may not use software RoCE.
var ErrPrivilege = errors.New("the user-space stack needs CAP_NET_RAW for software RoCE, and CAP_NET_ADMIN and CAP_BPF to take the connections of programs: run it as root")

// permitted returns an error if packet sockets are not permitted. It is called before
// anything is changed.
func permitted() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return fmt.Errorf("%w: %w", ErrPrivilege, os.ErrPermission)
		}
		return fmt.Errorf("packet sockets: %w", err)
	}
	return unix.Close(fd)
}

// reportMissing logs which capabilities the stack does not have, and what is lost, and returns
// it. Packet sockets are permitted, so CAP_NET_RAW is there.
func reportMissing(log *slog.Logger) (lost []string) {
	have, err := confine.Effective()
	if err != nil {
		log.Warn("capabilities are not known", "err", err)
		return nil
	}
	for _, p := range append(slices.Clone(privileges), startPrivilege) {
		if !have.Has(p.number) {
			log.Warn("a capability is missing", "capability", p.name, "lost", p.lost)
			if p != startPrivilege { // of which lacks.noWire tells
				lost = append(lost, fmt.Sprintf("%s is missing, so the stack lacks %s: start it as root, or give it the capability", p.name, p.lost))
			}
		}
	}
	return lost
}

// strictEnv is the environment variable with which a system call that is not in the list
// ends the process, if the value is "strict". Tests set it.
const strictEnv = "SMCR_SYSCALL_FILTER"

// confineSelf takes everything from the process that a stack that serves does not need:
// capabilities, and system calls unless noFilter is set. The stack goes on without what the
// system refuses.
func confineSelf(noFilter bool, log *slog.Logger) {
	if err := confine.KeepOnly(kept()); err != nil {
		log.Warn("the stack keeps capabilities that it does not need", "err", err)
	}
	if noFilter {
		return
	}
	otherwise := confine.Refuse
	if os.Getenv(strictEnv) == "strict" {
		otherwise = confine.Trap
	}
	calls := systemCalls()
	if err := confine.Filter(calls, otherwise); err != nil {
		log.Warn("the stack may use all system calls", "err", err)
		return
	}
	log.Debug("confined", "system_calls", len(calls))
}
