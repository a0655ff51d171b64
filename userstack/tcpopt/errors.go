// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotPermitted means that a privilege is missing. The text of the error that wraps
	// it names the missing capability or setting.
	ErrNotPermitted = errors.New("tcpopt: not permitted")
	// ErrUnsupportedKernel means that the kernel lacks a feature that the program needs.
	ErrUnsupportedKernel = errors.New("tcpopt: the kernel does not support TCP header options by eBPF (needs Linux 5.15 with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF)")
	// ErrUnsupportedSocket means that the option cannot be written for this kind of
	// socket: it is not TCP, or it is MPTCP, or it has TCP_FASTOPEN_CONNECT set.
	ErrUnsupportedSocket = errors.New("tcpopt: not a plain TCP socket")
	// ErrSocketState means that it is too late for a mark: the socket is connecting or
	// connected.
	ErrSocketState = errors.New("tcpopt: the socket is already in use: mark it before connect or listen")
	// ErrListening means that this kernel cannot mark a socket that already listens. Mark
	// it before listen(2).
	ErrListening = errors.New("tcpopt: marking a listening socket needs Linux 6.12: mark it before listen")
	// ErrNotMarked means that neither the socket nor the listener that it was accepted
	// from has a mark.
	ErrNotMarked = errors.New("tcpopt: the socket is not marked")
	// ErrClosed means that the Program was closed.
	ErrClosed = errors.New("tcpopt: closed")
)

// checkPrivilege returns ErrNotPermitted if privileges are missing. It must be called before
// the eBPF library, which would regard the refusal as a missing feature of the kernel, and
// remember that.
func checkPrivilege() error {
	caps, err := effectiveCapabilities()
	if err != nil {
		return fmt.Errorf("tcpopt: capabilities: %w", err)
	}
	if len(caps.missing()) > 0 || inUserNamespace() {
		return fmt.Errorf("%w: %s", ErrNotPermitted, missingPrivilege())
	}
	// The smallest map possible: type, size of key and value in bytes, number of entries.
	attr := [4]uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return bpfError("bpf(2)", errno)
	}
	return unix.Close(int(fd))
}

// bpfError classifies an error of a privileged step: if the user can change its cause, it
// becomes ErrNotPermitted or ErrUnsupportedKernel.
func bpfError(step string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES) && !isVerifierError(err):
		return fmt.Errorf("%w: %s: %s: %w", ErrNotPermitted, step, missingPrivilege(), err)
	case isVerifierError(err), errors.Is(err, ebpf.ErrNotSupported),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %s: %w", ErrUnsupportedKernel, step, err)
	}
	return fmt.Errorf("tcpopt: %s: %w", step, err)
}

func isVerifierError(err error) bool {
	_, ok := errors.AsType[*ebpf.VerifierError](err)
	return ok
}

// missingPrivilege returns which privileges are missing to attach the program.
func missingPrivilege() string {
	const remedy = "run as root or grant CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN)"
	caps, err := effectiveCapabilities()
	if err != nil {
		return remedy
	}
	if missing := caps.missing(); len(missing) > 0 {
		return "missing " + strings.Join(missing, " and ") + ": " + remedy
	}
	if inUserNamespace() {
		return "the capabilities hold only in a user namespace: they are needed in the initial one"
	}
	return "the capabilities are present, so a seccomp filter, a security module, kernel lockdown or an exclusively attached cgroup program prevents it: allow bpf(2), or detach the program (bpftool cgroup tree)"
}

// capabilities is a set, with the bits of capabilities(7).
type capabilities uint64

func effectiveCapabilities() (capabilities, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, err
	}
	return capabilities(data[0].Effective) | capabilities(data[1].Effective)<<32, nil
}

func (c capabilities) has(n uint) bool { return c>>n&1 != 0 }

// missing returns the names of the capabilities that are missing to attach.
func (c capabilities) missing() []string {
	if c.has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	var names []string
	if !c.has(unix.CAP_BPF) {
		names = append(names, "CAP_BPF")
	}
	if !c.has(unix.CAP_NET_ADMIN) {
		names = append(names, "CAP_NET_ADMIN")
	}
	return names
}

// inUserNamespace reports whether user IDs are mapped, as in every user namespace but the
// initial one.
func inUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	return strings.Join(strings.Fields(string(b)), " ") != "0 0 4294967295"
}
