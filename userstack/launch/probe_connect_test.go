// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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

// probeRefused: args are an address and the number of the errno to expect.
func probeRefused(args []string) error {
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	want := syscall.Errno(number)
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	for i := 0; i < 2; i++ { // the socket can be used again
		if err := unix.Connect(fd, sa); !errors.Is(err, want) {
			return fmt.Errorf("blocking, attempt %d: %v, want %v", i, err, want)
		}
	}
	unix.Close(fd)
	for _, how := range []string{"poll", "select", "epoll-after", "epoll-before"} {
		fd, err := startNonblocking(args[0], how)
		if !errors.Is(err, want) {
			return fmt.Errorf("%s: %v, want %v", how, err, want)
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
			if err := pollOnce(fd); err != nil {
				return fmt.Errorf("%s: poll: %w", how, err)
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

// probeTimeout has SO_SNDTIMEO bound a blocking connect, whose end waits for what
// it says.
func probeTimeout(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		return err
	}
	start := time.Now()
	err := unix.Connect(fd, sa)
	if d := time.Since(start); !errors.Is(err, unix.EINPROGRESS) || d < 90*time.Millisecond {
		return fmt.Errorf("%v after %v", err, d)
	}
	fmt.Println("in progress")
	// Without the bound, a further call waits for the end.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{}); err != nil {
		return err
	}
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
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &unix.Timeval{Sec: 60}); err != nil {
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
	if d := time.Since(start); d < 90*time.Millisecond {
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
	// As with TCP.
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("getpeername after reset: %v, want %w", err, unix.ENOTCONN)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY after reset: %w", err)
	}
	if _, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); err != nil {
		return fmt.Errorf("get TCP_KEEPIDLE after reset: %w", err)
	}
	return nil
}

// probeSetting sets SO_LINGER again and again while its connection is made.
func probeSetting(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %v", err)
	}
	for p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}; p[0].Revents == 0; _, _ = unix.Poll(p, 5) {
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3}); err != nil {
			return fmt.Errorf("SO_LINGER: %w", err)
		}
	}
	return echo(fd, "set")
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

// errnoArg is e as an argument of a probe.
func errnoArg(e syscall.Errno) string { return strconv.Itoa(int(e)) }
