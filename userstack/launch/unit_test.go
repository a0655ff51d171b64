// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func runFilter(t *testing.T, allowIOUring bool, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	return verdict(t, filterProgram(allowIOUring), arch, nr, args...)
}

// verdict runs a filter on one system call.
func verdict(t *testing.T, filter []unix.SockFilter, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	var prog []bpf.Instruction
	for _, f := range filter {
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
	for i, a := range args {
		binary.BigEndian.PutUint32(data[dataArgs+8*i+argLow:], uint32(a))
		binary.BigEndian.PutUint32(data[dataArgs+8*i+4-argLow:], uint32(a>>32))
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

func TestFilter(t *testing.T) {
	testkind.System(t)
	refuse := func(e unix.Errno) uint32 { return retErrno | uint32(e) }
	for _, tt := range []struct {
		name string
		nr   int
		args []uint64
		want uint32
	}{
		{"read", unix.SYS_READ, nil, retAllow},
		{"connect", unix.SYS_CONNECT, nil, retNotify},
		{"listen", unix.SYS_LISTEN, nil, retNotify},
		{"bind", unix.SYS_BIND, []uint64{3, 0, unix.SizeofSockaddrInet4}, retNotify},
		{"bind netlink", unix.SYS_BIND, []uint64{3, 0, unix.SizeofSockaddrNetlink}, retAllow},
		{"accept4", unix.SYS_ACCEPT4, nil, retNotify},
		{"landlock", unix.SYS_LANDLOCK_CREATE_RULESET, nil, retNotify},
		{"getpeername", unix.SYS_GETPEERNAME, nil, retNotify},
		{"socket TCP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, retAllow},
		{"socket MPTCP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP}, refuse(unix.EPROTONOSUPPORT)},
		{"sendto", unix.SYS_SENDTO, []uint64{3, 0, 0, unix.MSG_DONTWAIT}, retAllow},
		{"sendto TFO", unix.SYS_SENDTO, []uint64{3, 0, 0, msgFastOpen | unix.MSG_DONTWAIT}, refuse(unix.EOPNOTSUPP)},
		{"sendmsg TFO", unix.SYS_SENDMSG, []uint64{3, 0, msgFastOpen}, refuse(unix.EOPNOTSUPP)},
		{"set reuseaddr", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}, retAllow},
		{"set keepalive", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_KEEPALIVE}, retNotify},
		{"set rcvtimeo", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_RCVTIMEO}, retAllow},
		{"set nodelay", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, retNotify},
		{"set TFO", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, tcpFOConnect}, refuse(unix.EOPNOTSUPP)},
		{"get TFO", unix.SYS_GETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, tcpFOConnect}, retNotify},
		{"get error", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_ERROR}, retNotify},
		{"get rcvbuf", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_RCVBUF}, retAllow},
		{"set tos", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_IP, unix.IP_TOS}, retNotify},
		{"set v6only", unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, retNotify},
		{"set netlink", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_NETLINK, 1}, retNotify},
		{"set reuseport", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEPORT}, retNotify},
		{"get passcred", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_PASSCRED}, retNotify},
		{"get type", unix.SYS_GETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_TYPE}, retAllow},
		{"attach filter", unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, retAllow},
		{"recvfrom", unix.SYS_RECVFROM, []uint64{3, 0, 0, unix.MSG_DONTWAIT | unix.MSG_PEEK | unix.MSG_WAITALL}, retAllow},
		{"recvfrom that discards", unix.SYS_RECVFROM, []uint64{3, 0, 0, unix.MSG_TRUNC | unix.MSG_DONTWAIT}, retNotify},
		{"recvmsg", unix.SYS_RECVMSG, []uint64{3, 0, unix.MSG_CMSG_CLOEXEC}, retAllow},
		{"recvmsg of errors", unix.SYS_RECVMSG, []uint64{3, 0, unix.MSG_ERRQUEUE}, retNotify},
		{"ioctl FIONREAD", unix.SYS_IOCTL, []uint64{3, unix.SIOCINQ}, retAllow},
		{"ioctl FIONBIO", unix.SYS_IOCTL, []uint64{3, 0x5421}, retAllow},
		{"ioctl SIOCATMARK", unix.SYS_IOCTL, []uint64{3, unix.SIOCATMARK}, retAllow},
		{"ioctl SIOCGIFINDEX", unix.SYS_IOCTL, []uint64{3, unix.SIOCGIFINDEX}, retAllow},
		{"ioctl SIOCGIFADDR", unix.SYS_IOCTL, []uint64{3, unix.SIOCGIFADDR}, retNotify},
		{"ioctl SIOCOUTQ", unix.SYS_IOCTL, []uint64{3, unix.SIOCOUTQ}, retNotify},
		{"ioctl of a terminal", unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, retAllow},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, refuse(unix.ENOSYS)},
	} {
		if got := runFilter(t, false, auditArch, tt.nr, tt.args...); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
		if got := runFilter(t, false, auditArch^1, tt.nr, tt.args...); got != retAllow {
			t.Errorf("%s on another architecture: %#x", tt.name, got)
		}
	}
	if got := runFilter(t, true, auditArch, unix.SYS_IO_URING_SETUP); got != retAllow {
		t.Errorf("io_uring allowed: %#x", got)
	}
	if x32SyscallBit != 0 {
		if got := runFilter(t, false, auditArch, unix.SYS_CONNECT|x32SyscallBit); got != retAllow {
			t.Errorf("x32: %#x", got)
		}
	}
}

// Our structures and numbers against the system's headers.
func TestHeaders(t *testing.T) {
	testkind.System(t)
	needProgram(t, "gcc")
	dir := t.TempDir()
	src := `#include <linux/seccomp.h>
#include <linux/audit.h>
#include <linux/tcp.h>
#include <sys/socket.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
	printf("%zu %zu %zu %zu ", sizeof(struct seccomp_notif), sizeof(struct seccomp_notif_resp), sizeof(struct seccomp_notif_addfd), sizeof(struct seccomp_data));
	printf("%zu %zu ", offsetof(struct seccomp_notif, data.args), offsetof(struct seccomp_notif_addfd, newfd_flags));
	printf("%lx %lx %d %d %x\n", (long)SECCOMP_IOCTL_NOTIF_ID_VALID, (long)SECCOMP_IOCTL_NOTIF_ADDFD, TCP_FASTOPEN_CONNECT, TCP_ULP, MSG_FASTOPEN);
	return 0;
}`
	c := filepath.Join(dir, "h.c")
	if err := os.WriteFile(c, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", filepath.Join(dir, "h"), c).CombinedOutput(); err != nil {
		t.Skipf("the kernel's headers are missing or old: %v\n%s", err, out)
	}
	got, err := exec.Command(filepath.Join(dir, "h")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var n seccompNotif
	var a seccompAddFD
	want := fmt.Sprintf("%d %d %d %d %d %d %x %x %d %d %x\n",
		unsafe.Sizeof(n), unsafe.Sizeof(seccompResp{}), unsafe.Sizeof(a), unsafe.Sizeof(n)-unsafe.Offsetof(n.Nr),
		unsafe.Offsetof(n.Args), unsafe.Offsetof(a.NewFDFlags), iocNotifIDValid, iocNotifAddFD, tcpFOConnect, tcpULP, msgFastOpen)
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("(-headers +ours):\n%s", diff)
	}
}

// Lines of /proc/PID/fdinfo of an epoll descriptor, Linux 6.18.
const epollInfo = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n" +
	"tfd:        5 events: 8000201d data: 7654321001234567  pos:0 ino:2a2 sdev:9\n" +
	"tfd:       15 events:       19 data:                f  pos:0 ino:2a3 sdev:9\n"

func TestParseEpollInfo(t *testing.T) {
	ev, ok, err := parseEpollInfo([]byte(epollInfo), 5)
	if !ok || err != nil || ev.Events != 0x8000201d || *(*uint64)(unsafe.Pointer(&ev.Fd)) != 0x7654321001234567 {
		t.Errorf("%+v, %v, %v", ev, ok, err)
	}
	if _, ok, err := parseEpollInfo([]byte(epollInfo), 1); ok || err != nil {
		t.Errorf("not registered: %v, %v", ok, err)
	}
	for n := range epollInfo {
		_, _, _ = parseEpollInfo([]byte(epollInfo)[:n], 5)
	}
}

func FuzzParseEpollInfo(f *testing.F) {
	f.Add([]byte(epollInfo))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, ok, err := parseEpollInfo(b, 5); ok && err != nil {
			t.Error("both a result and an error")
		}
	})
}

func TestSockaddr(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		domain int
		ap     string
		size   int
	}{
		{unix.AF_INET, "192.0.2.1:80", 16},
		{unix.AF_INET6, "[2001:db8::1]:65535", 28},
		{unix.AF_INET6, "[fe80::1%4]:1", 28},
		{unix.AF_INET6, "[::ffff:192.0.2.1]:1", 28},
	} {
		want := netip.MustParseAddrPort(tt.ap)
		b := appendSockaddr(nil, tt.domain, want)
		if len(b) != tt.size {
			t.Errorf("%v: %d bytes, want %d", want, len(b), tt.size)
		}
		got, flow := parseSockaddr(b)
		if got != want || flow != 0 {
			t.Errorf("%v, flow %d, want %v", got, flow, want)
		}
		for n := range b {
			if ap, _ := parseSockaddr(b[:n]); ap.IsValid() && (n < 16 || tt.size == 28 && n < 24) {
				t.Errorf("%v from %d bytes", ap, n)
			}
		}
	}
	if ap, _ := parseSockaddr(append([]byte{unix.AF_UNIX, 0}, make([]byte, 30)...)); ap.IsValid() {
		t.Errorf("unix address: %v", ap)
	}
}

// synWithOptions returns a SYN with TCP options as TCP_SAVED_SYN returns it.
func synWithOptions(v6 bool, options ...byte) []byte {
	tcp := append(make([]byte, 20), options...)
	tcp[12] = byte(len(tcp)/4) << 4
	if v6 {
		return append(append([]byte{0x60}, make([]byte, 39)...), tcp...)
	}
	return append(append([]byte{0x45}, make([]byte, 19)...), tcp...)
}

func TestSMCOption(t *testing.T) {
	smc := []byte{2, 4, 5, 0xb4, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1}
	for _, v6 := range []bool{false, true} {
		b := synWithOptions(v6, smc...)
		if !smcOptionIn(b) {
			t.Errorf("v6 %v: not found", v6)
		}
		for n := range len(b) - 2 {
			if smcOptionIn(b[:n]) {
				t.Errorf("v6 %v: found in %d bytes", v6, n)
			}
		}
		for name, o := range map[string][]byte{
			"none":      {2, 4, 5, 0xb4},
			"other ID":  {254, 6, 0xe2, 0xd4, 0xc3, 0xd8, 1, 1},
			"after end": {0, 0, 0, 0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1},
			"no length": {2, 0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9},
		} {
			if smcOptionIn(synWithOptions(v6, o...)) {
				t.Errorf("v6 %v, %s: found", v6, name)
			}
		}
	}
}

func FuzzSMCOption(f *testing.F) {
	f.Add(synWithOptions(false, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1))
	f.Add(synWithOptions(true, 2, 4, 5, 0xb4, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1))
	f.Fuzz(func(_ *testing.T, b []byte) { smcOptionIn(b) })
}

// TestManyReasons: a peer that gives ever new reasons does not make the launcher
// remember them all.
func TestManyReasons(t *testing.T) {
	c := newCounters()
	const n = 10 * maxReasons
	for i := range n {
		c.tcp(fmt.Sprintf("peer %d", i))
	}
	c.tcp("peer 0")
	s := c.snapshot()
	if len(s.TCP) != maxReasons+1 || s.TCP["peer 0"] != 2 || s.TCP[ReasonOther] != n-maxReasons {
		t.Errorf("%d reasons, %d of the first, %d others", len(s.TCP), s.TCP["peer 0"], s.TCP[ReasonOther])
	}
}
