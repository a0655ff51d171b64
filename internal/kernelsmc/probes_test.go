// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probes are programs that the tests run.
var probes = map[string]func(args []string) error{
	"sockets": probeSockets, "echo": probeEcho, "limit": probeLimit, "storm": probeStorm, "owner": probeOwner, "buffers": probeBuffers, "landlock": probeLandlock,
}

// tcpSockets is how many sockets probeSockets makes that are to be SMC's.
const tcpSockets = 2 * 3 * 4

// probeSockets checks family, flags and number of each kind of socket.
func probeSockets(args []string) error {
	inet := args[0] == "true"
	// The runtime opens descriptors for the poller at its first use.
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
	opt := func(fd, name int) int {
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
		if err != nil {
			return -1
		}
		return v
	}
	for _, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, proto := range []int{0, unix.IPPROTO_TCP, ipprotoMPTCP} {
			for _, flags := range []int{0, unix.SOCK_CLOEXEC, unix.SOCK_NONBLOCK, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK} {
				free, err := unix.Dup(0)
				if err != nil {
					return err
				}
				_ = unix.Close(free)
				fd, err := unix.Socket(domain, unix.SOCK_STREAM|flags, proto)
				if err != nil {
					return fmt.Errorf("socket(%d, %#x, %d): %w", domain, flags, proto, err)
				}
				wantDomain, wantProto := unix.AF_SMC, smcProtoSMC
				if domain == unix.AF_INET6 {
					wantProto = smcProtoSMC6
				}
				if inet {
					wantDomain, wantProto = domain, unix.IPPROTO_SMC
				}
				if d, p := opt(fd, unix.SO_DOMAIN), opt(fd, unix.SO_PROTOCOL); d != wantDomain || p != wantProto {
					return fmt.Errorf("socket(%d, %#x, %d) has domain %d, protocol %d", domain, flags, proto, d, p)
				}
				if opt(fd, unix.SO_TYPE) != unix.SOCK_STREAM || fd != free {
					return fmt.Errorf("socket has type %d, number %d instead of %d", opt(fd, unix.SO_TYPE), fd, free)
				}
				status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
				own, err2 := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
				if err := errors.Join(err, err2); err != nil {
					return err
				}
				if (status&unix.O_NONBLOCK != 0) != (flags&unix.SOCK_NONBLOCK != 0) || (own&unix.FD_CLOEXEC != 0) != (flags&unix.SOCK_CLOEXEC != 0) {
					return fmt.Errorf("flags %#x became %#x, %#x", flags, status, own)
				}
				_ = unix.Close(fd)
			}
		}
	}
	for _, other := range [][3]int{{unix.AF_INET, unix.SOCK_DGRAM, 0}, {unix.AF_UNIX, unix.SOCK_STREAM, 0}, {unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}} {
		fd, err := unix.Socket(other[0], other[1], other[2])
		if err != nil {
			return err
		}
		if d := opt(fd, unix.SO_DOMAIN); d != other[0] {
			return fmt.Errorf("socket%v has domain %d", other, d)
		}
		_ = unix.Close(fd)
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|0x10, 0); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("socket with an unknown flag: %v", err)
	}
	return nil
}

// probeEcho connects to itself and exchanges a few bytes: two sockets.
func probeEcho([]string) error {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(l, 1); err != nil {
		return err
	}
	sa, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c, _, err := unix.Accept(l)
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	served := make(chan error, 1)
	go func() {
		b := make([]byte, 5)
		n, err := unix.Read(c, b)
		if err == nil {
			_, err = unix.Write(c, b[:n])
		}
		served <- err
	}()
	b := make([]byte, 5)
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return err
	}
	if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != "hello" {
		return fmt.Errorf("read %q (%w)", b[:n], err)
	}
	peer, err := unix.Getpeername(fd)
	if p, ok := peer.(*unix.SockaddrInet4); err != nil || !ok || p.Port != sa.(*unix.SockaddrInet4).Port {
		return fmt.Errorf("peer %v (%w), want %v", peer, err, sa)
	}
	return <-served
}

// probeLimit: the program's own limit of descriptors counts.
func probeLimit([]string) error {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	limit := uint64(len(files) + 20)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	for range 100 {
		if _, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("beyond the limit: %v, want EMFILE", err)
	}
	return nil
}

const stormSockets = 300

// probeStorm makes sockets under a storm of signals: each call succeeds,
// and none leaves a second descriptor behind.
func probeStorm([]string) error {
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, unix.SIGUSR1)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Kill(os.Getpid(), unix.SIGUSR1)
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	time.Sleep(time.Microsecond) // The first timer makes two descriptors of the runtime.
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for i := range stormSockets {
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			return fmt.Errorf("socket %d: %w", i, err)
		}
	}
	close(stop)
	<-over
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	if n := len(after) - len(before); n != stormSockets {
		return fmt.Errorf("%d descriptors more, want %d", n, stormSockets)
	}
	return nil
}

func probeOwner(args []string) error {
	want, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if d, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || d != unix.AF_SMC {
		return fmt.Errorf("domain %d (%v), not AF_SMC", d, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(st.Uid) != want {
		return fmt.Errorf("the socket is user %d's, not %d's", st.Uid, want)
	}
	native, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	own, err2 := unix.GetsockoptUint64(native, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if got != own {
		return fmt.Errorf("the socket is in network namespace %d, the program in %d", got, own)
	}
	return nil
}

func probeBuffers(args []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	for i, name := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		// The kernel returns twice the value that was set.
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name); err != nil || strconv.Itoa(v/2) != args[i] {
			return fmt.Errorf("option %d: %d (%v), want 2 * %s", name, v, err, args[i])
		}
	}
	return nil
}

// probeLandlock makes a ruleset that says nothing of connections, one that does, and sockets before and between and after them.
func probeLandlock([]string) error {
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return err
	}
	for _, attr := range [][2]uint64{{1, 0}, {1, 1}} {
		// The kernel may not have Landlock.
		if fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0); e == 0 {
			_ = unix.Close(int(fd))
		}
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
			return err
		}
	}
	return nil
}
