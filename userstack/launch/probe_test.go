// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"net"
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
	"latency":     probeLatency,
	"nested":      probeNested,

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
	select {
	case err := <-done:
		if err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case <-time.After(20 * time.Second):
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

// isPair tells whether fd is a unix socket: those alone know SIOCUNIXFILE,
// which fails for one without a name.
func isPair(fd int) bool {
	const sIOCUNIXFILE = 0x89E0
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), sIOCUNIXFILE, 0)
	return e == unix.EPERM || e == unix.ENOENT
}

func soErrorOf(fd int) syscall.Errno {
	e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err.(syscall.Errno)
	}
	return syscall.Errno(e)
}

// pollOnce waits for fd to be writable.
func pollOnce(fd int) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 5000)
	return err
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

// checkConnected checks everything that tells a connected TCP socket.
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

func probeBlocking(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	for _, cloexec := range []int{0, unix.SOCK_CLOEXEC} {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|cloexec, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, sa); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		f, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if (f&unix.FD_CLOEXEC != 0) != (cloexec != 0) {
			return fmt.Errorf("close-on-exec is %d, want %d", f, cloexec)
		}
		if f, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); f&unix.O_NONBLOCK != 0 {
			return errors.New("became non-blocking")
		}
		if err := checkConnected(fd, args[0], args[1] == "smc"); err != nil {
			return err
		}
		if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
			return err
		}
		if n, err := unix.Read(fd, make([]byte, 10)); n != 0 || err != nil {
			return fmt.Errorf("after shutdown: %d, %v", n, err)
		}
		unix.Close(fd)
	}
	return nil
}

// nonblocking starts a connection and waits for it as how says.
func startNonblocking(address, how string) (fd int, err error) {
	sa, family, _ := sockaddrOf(address)
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	ep := -1
	if strings.HasPrefix(how, "epoll") {
		if ep, err = unix.EpollCreate1(0); err != nil {
			return -1, err
		}
		defer unix.Close(ep)
	}
	const et = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	ev := unix.EpollEvent{Events: et, Fd: 0x1234567, Pad: 0x7654321}
	if how == "epoll-before" {
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return -1, err
		}
		// A fresh socket is hung up; take that event.
		evs := make([]unix.EpollEvent, 4)
		if n, err := unix.EpollWait(ep, evs, 0); n != 1 || err != nil {
			return -1, fmt.Errorf("fresh socket: %d, %v", n, err)
		}
	}
	if err := unix.Connect(fd, sa); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fd, err
	}
	switch how {
	case "poll":
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		for {
			n, err := unix.Poll(p, 5000)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n != 1 {
				return fd, fmt.Errorf("poll: %d, %v", n, err)
			}
			break
		}
	case "select":
		for {
			var w unix.FdSet
			w.Set(fd)
			n, err := unix.Select(fd+1, nil, &w, nil, &unix.Timeval{Sec: 5})
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n != 1 {
				return fd, fmt.Errorf("select: %d, %v", n, err)
			}
			break
		}
	case "epoll-after":
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return fd, err
		}
		fallthrough
	case "epoll-before":
		evs := make([]unix.EpollEvent, 4)
		for {
			n, err := unix.EpollWait(ep, evs, 5000)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n != 1 || evs[0].Events&unix.EPOLLOUT == 0 || evs[0].Fd != ev.Fd || evs[0].Pad != ev.Pad {
				return fd, fmt.Errorf("epoll: %d %+v, %v", n, evs[0], err)
			}
			break
		}
		if e := soErrorOf(fd); e != 0 {
			return fd, e
		}
		// The registration has to survive what SO_ERROR led to.
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, fd, &ev); err != nil {
			return fd, fmt.Errorf("EPOLL_CTL_MOD: %w", err)
		}
	}
	if e := soErrorOf(fd); e != 0 {
		return fd, e
	}
	return fd, nil
}

func probeNonblocking(args []string) error {
	for _, how := range []string{"poll", "select", "epoll-after", "epoll-before"} {
		fd, err := startNonblocking(args[0], how)
		if err != nil {
			return fmt.Errorf("%s: %w", how, err)
		}
		if f, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); f&unix.O_NONBLOCK == 0 {
			return errors.New("became blocking")
		}
		if err := checkConnected(fd, args[0], args[1] == "smc"); err != nil {
			return fmt.Errorf("%s: %w", how, err)
		}
		unix.Close(fd)
	}
	return nil
}

// probeRefused: args are an address and the errno's text to expect.
func probeRefused(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	for i := 0; i < 2; i++ { // the socket can be used again
		if err := unix.Connect(fd, sa); err == nil || err.Error() != args[1] {
			return fmt.Errorf("blocking, attempt %d: %v, want %s", i, err, args[1])
		}
	}
	unix.Close(fd)
	for _, how := range []string{"poll", "select", "epoll-after", "epoll-before"} {
		fd, err := startNonblocking(args[0], how)
		if err == nil || err.Error() != args[1] {
			return fmt.Errorf("%s: %v, want %s", how, err, args[1])
		}
		if e := soErrorOf(fd); e != 0 {
			return fmt.Errorf("%s: SO_ERROR again: %v", how, e)
		}
		if len(args) > 2 {
			// The socket can connect elsewhere then.
			sa2, _, _ := sockaddrOf(args[2])
			err := unix.Connect(fd, sa2)
			if errors.Is(err, unix.ECONNABORTED) { // once, as Linux has it
				err = unix.Connect(fd, sa2)
			}
			if err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return fmt.Errorf("%s: connect elsewhere: %v", how, err)
			}
			for errors.Is(pollOnce(fd), unix.EINTR) {
			}
			if e := soErrorOf(fd); e != 0 {
				return fmt.Errorf("%s: connect elsewhere: %v", how, e)
			}
			if err := echo(fd, "elsewhere"); err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
		}
		unix.Close(fd)
	}
	return nil
}

// probeAgain calls connect again and again until it is done.
func probeAgain(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("first: %v", err)
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("getpeername while connecting: %v", err)
	}
	if _, err := unix.Write(fd, []byte("x")); !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("write while connecting: %v", err)
	}
	already := 0
	for {
		err := unix.Connect(fd, sa)
		if errors.Is(err, unix.EALREADY) {
			already++
			time.Sleep(5 * time.Millisecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("after %d EALREADY: %w", already, err)
		}
		break
	}
	if already == 0 {
		return errors.New("no EALREADY")
	}
	return checkConnected(fd, args[0], true)
}

// probeTimeout has SO_SNDTIMEO bound a blocking connect.
func probeTimeout(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		return err
	}
	start := time.Now()
	err := unix.Connect(fd, sa)
	if d := time.Since(start); !errors.Is(err, unix.EINPROGRESS) || d < 90*time.Millisecond || d > 300*time.Millisecond {
		return fmt.Errorf("%v after %v", err, d)
	}
	// Without the bound, a further call waits for the end.
	time.Sleep(500 * time.Millisecond)
	if err := unix.Connect(fd, sa); err != nil {
		return fmt.Errorf("second: %w", err)
	}
	return checkConnected(fd, args[0], true)
}

func probeDup(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		return err
	}
	unix.Close(fd)
	if err := checkConnected(dup, args[0], true); err != nil {
		return fmt.Errorf("duplicate: %w", err)
	}
	// Passed over a unix socket.
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(sp[0], []byte{0}, unix.UnixRights(dup), nil, 0); err != nil {
		return err
	}
	unix.Close(dup)
	oob := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(sp[1], make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	got, err := receivedFD(oob[:n])
	if err != nil {
		return err
	}
	if _, err := unix.Getpeername(got); err != nil {
		return err
	}
	return echo(got, "passed")
}

// probeCarry checks that options set before connect act after it.
func probeCarry(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &unix.Timeval{Sec: 2, Usec: 200000}); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 7}); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	if !isPair(fd) {
		return errors.New("not taken over")
	}
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}} {
		if v, err := unix.GetsockoptInt(fd, o[0], o[1]); err != nil || v != o[2] {
			return fmt.Errorf("option %v: %d, %v", o, v, err)
		}
	}
	b := make([]byte, 8)
	if n, err := getRaw(fd, unix.SOL_SOCKET, unix.SO_LINGER, b); err != nil || n != 8 || !bytes.Equal(b, []byte{1, 0, 0, 0, 7, 0, 0, 0}) {
		return fmt.Errorf("SO_LINGER % x, %v", b, err)
	}
	start := time.Now()
	if _, err := unix.Read(fd, make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("read: %v", err)
	}
	if d := time.Since(start); d < 90*time.Millisecond || d > time.Second {
		return fmt.Errorf("SO_RCVTIMEO acted after %v", d)
	}
	return echo(fd, "carried")
}

// probeReset reads what came before a reset, then the reset.
func probeReset(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	var got []byte
	for {
		b := make([]byte, 100)
		n, err := unix.Read(fd, b)
		if n > 0 {
			got = append(got, b[:n]...)
			continue
		}
		if !errors.Is(err, unix.ECONNRESET) {
			return fmt.Errorf("after %q: %d, %v, want ECONNRESET", got, n, err)
		}
		break
	}
	if string(got) != args[1] {
		return fmt.Errorf("before the reset %q, want %q", got, args[1])
	}
	// As with TCP. The launcher may hear of the reset after the program.
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(ms) {
		_, err := unix.Getpeername(fd)
		if errors.Is(err, unix.ENOTCONN) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("getpeername after reset: %v, want %w", err, unix.ENOTCONN)
		}
	}
	return nil
}

// probeServer is an echo server for so many connections, using accept in the
// way named. It prints its address.
func probeServer(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	how, count := args[1], len(args[2])
	flags := 0
	if how == "nonblock" {
		flags = unix.SOCK_NONBLOCK
	}
	l, err := unix.Socket(family, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(l, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err := unix.Bind(l, sa); err != nil {
		return err
	}
	if err := unix.Listen(l, 64); err != nil {
		return err
	}
	if flags != 0 {
		if _, _, err := unix.Accept4(l, 0); !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("empty backlog: %v", err)
		}
	} else {
		if err := unix.SetsockoptTimeval(l, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}); err != nil {
			return err
		}
		if _, _, err := unix.Accept(l); !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("SO_RCVTIMEO on accept: %v", err)
		}
		if err := unix.SetsockoptTimeval(l, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			return err
		}
	}
	if _, _, err := unix.Accept4(l, 1); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("bad flags: %v", err)
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, toAddrPort(name))
	errc := make(chan error, count)
	for range count {
		one := func() error {
			if flags != 0 {
				p := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
				for _, err := unix.Poll(p, 5000); errors.Is(err, unix.EINTR); _, err = unix.Poll(p, 5000) {
				}
			}
			c, peer, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EAGAIN) {
				return err
			}
			if err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			defer unix.Close(c)
			if f, _ := unix.FcntlInt(uintptr(c), unix.F_GETFD, 0); f&unix.FD_CLOEXEC == 0 {
				return errors.New("SOCK_CLOEXEC lost")
			}
			if f, _ := unix.FcntlInt(uintptr(c), unix.F_GETFL, 0); f&unix.O_NONBLOCK != 0 {
				return errors.New("accepted socket is non-blocking")
			}
			p2, err := unix.Getpeername(c)
			if err != nil || toAddrPort(p2) != toAddrPort(peer) {
				return fmt.Errorf("getpeername %v, %v, accept said %v", p2, err, toAddrPort(peer))
			}
			ln, err := unix.Getsockname(c)
			if err != nil || toAddrPort(ln).Port() != toAddrPort(name).Port() {
				return fmt.Errorf("getsockname %v, %v", ln, err)
			}
			b := make([]byte, 100)
			for {
				n, err := unix.Read(c, b)
				if errors.Is(err, unix.EINTR) {
					continue // sockets inherit SO_RCVTIMEO, with which it is
				}
				if err != nil {
					return fmt.Errorf("read: %w", err)
				}
				if n == 0 {
					return nil
				}
				if _, err := unix.Write(c, b[:n]); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
		}
		if how == "threads" {
			go func() { errc <- one() }()
		} else {
			errc <- one()
		}
	}
	for range count {
		if err := <-errc; err != nil {
			return err
		}
	}
	return nil
}

// probePending looks at a connection whose handshake lasts.
func probePending(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %v", err)
	}
	if e := soErrorOf(fd); e != 0 {
		return fmt.Errorf("SO_ERROR: %v", e)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<17); err != nil {
		return fmt.Errorf("SO_SNDBUF: %w", err)
	}
	if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT | unix.POLLIN}}, 0); n != 0 {
		return errors.New("ready too early")
	}
	start := time.Now()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for n := 0; n == 0 && time.Since(start) < 5*time.Second; {
		n, _ = unix.Poll(p, 1000)
	}
	if d := time.Since(start); d < 30*time.Millisecond {
		return fmt.Errorf("ready after %v", d)
	}
	if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || v != 1 {
		return fmt.Errorf("TCP_NODELAY %d, %v", v, err)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || v != 1<<18 {
		return fmt.Errorf("SO_SNDBUF %d, %v", v, err)
	}
	return echo(fd, "pending")
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

// probeGoEcho is Go's own network code on both sides of one process.
func probeGoEcho(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 32<<10)
				for {
					n, err := c.Read(b)
					if n > 0 {
						_, _ = c.Write(b[:n])
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	errc := make(chan error, 8)
	for range 8 {
		go func() {
			errc <- func() error {
				c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
				if err != nil {
					return err
				}
				defer c.Close()
				if c.RemoteAddr().String() != l.Addr().String() {
					return fmt.Errorf("remote %v, want %v", c.RemoteAddr(), l.Addr())
				}
				msg := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
				go func() { _, _ = c.Write(msg) }()
				got := make([]byte, len(msg))
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				for n := 0; n < len(got); {
					m, err := c.Read(got[n:])
					if err != nil {
						return fmt.Errorf("after %d bytes: %w", n, err)
					}
					n += m
				}
				if !bytes.Equal(got, msg) {
					return errors.New("echo differs")
				}
				return c.(*net.TCPConn).SetNoDelay(false)
			}()
		}()
	}
	for range 8 {
		if err := <-errc; err != nil {
			return err
		}
	}
	return nil
}

// probeServerFirst never asks for SO_ERROR: it waits for the server's greeting.
func probeServerFirst(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %v", err)
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 5000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 {
			return fmt.Errorf("poll: %d, %v", n, err)
		}
		break
	}
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	if err != nil || string(b[:n]) != args[1] {
		return fmt.Errorf("greeting %q, %v", b[:max(n, 0)], err)
	}
	if err := echo(fd, "thanks"); err != nil {
		return err
	}
	_, err = unix.Getpeername(fd)
	return err
}

// probeCloseEarly closes connections while they are being made.
func probeCloseEarly(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	for range 5 {
		fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect: %v", err)
		}
		unix.Close(fd)
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
