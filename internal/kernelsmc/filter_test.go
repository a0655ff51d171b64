// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter on one system call.
func verdict(t *testing.T, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	var prog []bpf.Instruction
	for _, f := range filter() {
		prog = append(prog, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble())
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	// The virtual machine loads big endian words, the kernel native ones.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[dataNr:], uint32(nr))
	binary.BigEndian.PutUint32(data[dataArch:], arch)
	low := 0
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low = 4
	}
	for i, a := range args {
		binary.BigEndian.PutUint32(data[dataArgs+8*i+low:], uint32(a))
		binary.BigEndian.PutUint32(data[dataArgs+8*i+4-low:], uint32(a>>32))
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

func TestFilter(t *testing.T) {
	own := auditArch[runtime.GOARCH]
	for _, tt := range []struct {
		name string
		nr   int
		args []uint64
		want uint32
	}{
		{"IPv4", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, unix.SECCOMP_RET_USER_NOTIF},
		{"IPv6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, unix.SECCOMP_RET_USER_NOTIF},
		{"flags", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, unix.SECCOMP_RET_USER_NOTIF},
		{"MPTCP", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, ipprotoMPTCP}, unix.SECCOMP_RET_USER_NOTIF},
		{"high words", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_INET, 1<<32 | unix.SOCK_STREAM, 1 << 32}, unix.SECCOMP_RET_USER_NOTIF},
		{"UDP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, unix.SECCOMP_RET_ALLOW},
		{"SCTP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, unix.SECCOMP_RET_ALLOW},
		{"SMC", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SMC}, unix.SECCOMP_RET_ALLOW},
		{"AF_SMC", unix.SYS_SOCKET, []uint64{unix.AF_SMC, unix.SOCK_STREAM, 0}, unix.SECCOMP_RET_ALLOW},
		{"unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, unix.SECCOMP_RET_ALLOW},
		{"netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, unix.SECCOMP_RET_ALLOW},
		{"connect", unix.SYS_CONNECT, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, unix.SECCOMP_RET_ALLOW},
		{"accept4", unix.SYS_ACCEPT4, nil, unix.SECCOMP_RET_ALLOW},
		{"socketpair", unix.SYS_SOCKETPAIR, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, unix.SECCOMP_RET_ALLOW},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, unix.SECCOMP_RET_ALLOW},
		{"landlock", unix.SYS_LANDLOCK_CREATE_RULESET, nil, unix.SECCOMP_RET_USER_NOTIF},
	} {
		if got := verdict(t, own, tt.nr, tt.args...); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
		if got := verdict(t, own^1, tt.nr, tt.args...); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("%s on another architecture: %#x", tt.name, got)
		}
	}
}
