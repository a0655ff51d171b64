// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The probes run as launched programs and speak to the kernel directly: a
// program sees exactly this.

var probes = map[string]func(args []string) error{
	"blocking":    probeBlocking,
	"nonblocking": probeNonblocking,
	"refused":     probeRefused,
	"again":       probeAgain,
	"timeout":     probeTimeout,
	"dup":         probeDup,
	"carry":       probeCarry,
	"reset":       probeReset,
	"server":      probeServer,
	"pending":     probePending,
	"refusals":    probeRefusals,
	"goecho":      probeGoEcho,
	"serverfirst": probeServerFirst,
	"closeearly":  probeCloseEarly,
	"setting":     probeSetting,
	"urgent":      probeUrgent,
	"writeandgo":  probeWriteAndGo,
	"peerreset":   probePeerReset,
	"latency":     probeLatency,
	"nested":      probeNested,
	"rights":      probeRights,
	"signalowner": probeSignalOwner,
	"acceptowner": probeAcceptOwner,
	"landlock":    probeLandlock,
	"latestore":   probeLateStore,
	"late":        probeLate,
	"absent":      probeAbsent,
	"absentwait":  probeAbsentWait,
	"row":         probeRow,
	"absentquick": probeAbsentQuick,
	"deaf":        probeDeaf,
	"calls":       probeCalls,
	"unlucky":     probeUnlucky,
	"protected":   probeProtected,
	"handover":    probeHandOver,

	"kernelsockets": probeKernelSockets,
	"kernelecho":    probeKernelEcho,
	"kernellimit":   probeKernelLimit,
	"kernelstorm":   probeKernelStorm,
	"kernelowner":   probeKernelOwner,
	"kernelbuffers": probeKernelBuffers,
}

func runProbe(name string, args []string) int {
	f := probes[name]
	if f == nil {
		fmt.Println("unknown probe", name)
		return 2
	}
	done := make(chan error, 1)
	go func() { done <- f(args) }()
	limit := patience
	if name == "calls" { // it serves a fuzzer
		limit = 24 * time.Hour
	}
	select {
	case err := <-done:
		if err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case <-time.After(limit):
		panic("probe hangs")
	}
}

func sockaddrOf(s string) (unix.Sockaddr, int, netip.AddrPort) {
	ap := netip.MustParseAddrPort(s)
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}, unix.AF_INET, ap
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}, unix.AF_INET6, ap
}

// isPair reports whether fd is a unix socket: those alone know SIOCUNIXFILE,
// which fails for one without a name.
func isPair(fd int) bool {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return false
	}
	inode := strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")
	b, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 6 && f[6] == inode {
			return true
		}
	}
	return false
}

func soErrorOf(fd int) syscall.Errno {
	e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err.(syscall.Errno)
	}
	return syscall.Errno(e)
}

// pollOnce waits for fd to be writable. Signals of Go's scheduler interrupt it.
func pollOnce(fd int) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 5000)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func echo(fd int, text string) error {
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var got []byte
	for len(got) < len(text) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 5000); n == 0 && err == nil {
			return fmt.Errorf("no echo, got %q", got)
		}
		b := make([]byte, 4096)
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("end of file after %q", got)
		}
		got = append(got, b[:n]...)
	}
	if string(got) != text {
		return fmt.Errorf("echo %q, want %q", got, text)
	}
	return nil
}

// checkConnected checks everything by which a program can recognize a connected TCP
// socket.
func checkConnected(fd int, address string, wantPair bool) error {
	sa, family, want := sockaddrOf(address)
	if got := isPair(fd); got != wantPair {
		return fmt.Errorf("is a socketpair: %v, want %v", got, wantPair)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("getpeername: %w", err)
	}
	if got := toAddrPort(peer); got != want {
		return fmt.Errorf("getpeername %v, want %v", got, want)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	if got := toAddrPort(local); got.Port() == 0 || got.Addr().BitLen() != want.Addr().BitLen() {
		return fmt.Errorf("getsockname %v", got)
	}
	for _, o := range []struct{ level, name, want int }{
		{unix.SOL_SOCKET, unix.SO_ERROR, 0},
		{unix.SOL_SOCKET, unix.SO_TYPE, unix.SOCK_STREAM},
		{unix.SOL_SOCKET, unix.SO_DOMAIN, family},
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 0},
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.name); err != nil || got != o.want {
			return fmt.Errorf("option %d/%d: %d (%v), want %d", o.level, o.name, got, err, o.want)
		}
	}
	for _, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
			return fmt.Errorf("set %v: %w", o, err)
		}
		if got, err := unix.GetsockoptInt(fd, o[0], o[1]); err != nil || got != 1 {
			return fmt.Errorf("get %v: %d (%v)", o, got, err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, 9999, 1); !errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("unknown option: %v", err)
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != 1 || info.Rcv_mss == 0 {
		return fmt.Errorf("TCP_INFO %+v (%v)", info, err)
	}
	if mss, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil || mss < 500 {
		return fmt.Errorf("TCP_MAXSEG %d (%v)", mss, err)
	}
	if err := echo(fd, "hello\n"); err != nil {
		return err
	}
	err = unix.Connect(fd, sa)
	if err == nil { // once, after a non-blocking connect
		err = unix.Connect(fd, sa)
	}
	if !errors.Is(err, unix.EISCONN) {
		return fmt.Errorf("connect when connected: %v", err)
	}
	return nil
}

// probeRefusals checks what the filter refuses.
func probeRefusals([]string) error {
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP); !errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("MPTCP: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpFOConnect, 1); !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("TCP_FASTOPEN_CONNECT: %v", err)
	}
	sa := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Sendto(fd, []byte("x"), msgFastOpen, sa); !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("sendto MSG_FASTOPEN: %v", err)
	}
	if err := unix.Sendmsg(fd, []byte("x"), nil, sa, msgFastOpen); !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("sendmsg MSG_FASTOPEN: %v", err)
	}
	if _, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0); e != unix.ENOSYS {
		return fmt.Errorf("io_uring_setup: %v", e)
	}
	// Errors that are the kernel's.
	if err := unix.Connect(fd, &unix.SockaddrInet6{}); !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("wrong family: %v", err)
	}
	if err := unix.Connect(-1, sa); !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("bad descriptor: %v", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "/nowhere/at/all"}); !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("unix address: %v", err)
	}
	if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), 8, 16); e != unix.EFAULT {
		return fmt.Errorf("bad pointer: %v", e)
	}
	if _, _, err := unix.Accept4(fd, 0); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("accept on a socket that does not listen: %v", err)
	}
	return nil
}

// probeLatency prints the mean cost of calls.
func probeLatency(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	const rounds = 300
	var conns []int
	start := time.Now()
	for range rounds {
		fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err := unix.Connect(fd, sa); err != nil {
			return err
		}
		conns = append(conns, fd)
	}
	d := time.Since(start) / rounds
	start = time.Now()
	for range rounds {
		_ = unix.SetsockoptInt(conns[0], unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	d2 := time.Since(start) / rounds
	start = time.Now()
	for range rounds {
		_, _ = unix.Getpeername(conns[0])
	}
	fmt.Printf("connect %v, setsockopt %v, getpeername %v\n", d, d2, time.Since(start)/rounds)
	return nil
}
