// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func TestKernelFilter(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		name string
		nr   int
		args []uint64
		want uint32
	}{
		{"IPv4", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, retNotify},
		{"IPv6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, retNotify},
		{"flags", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 0}, retNotify},
		{"MPTCP", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, ipprotoMPTCP}, retNotify},
		{"high words", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_INET, 1<<32 | unix.SOCK_STREAM, 1 << 32}, retNotify},
		{"UDP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, retAllow},
		{"SCTP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, retAllow},
		{"SMC", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SMC}, retAllow},
		{"AF_SMC", unix.SYS_SOCKET, []uint64{unix.AF_SMC, unix.SOCK_STREAM, 0}, retAllow},
		{"unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, retAllow},
		{"netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, retAllow},
		{"connect", unix.SYS_CONNECT, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, retAllow},
		{"accept4", unix.SYS_ACCEPT4, nil, retAllow},
		{"socketpair", unix.SYS_SOCKETPAIR, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, retAllow},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, retAllow},
		{"landlock", unix.SYS_LANDLOCK_CREATE_RULESET, nil, retNotify},
	} {
		if got := verdict(t, kernelFilterProgram(), auditArch, tt.nr, tt.args...); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
		if got := verdict(t, kernelFilterProgram(), auditArch^1, tt.nr, tt.args...); got != retAllow {
			t.Errorf("%s on another architecture: %#x", tt.name, got)
		}
	}
}

func TestFSIDs(t *testing.T) {
	uid, gid, err := fsIDs([]byte("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"))
	if uid != 4 || gid != 8 || err != nil {
		t.Errorf("%d %d %v", uid, gid, err)
	}
	for _, bad := range []string{"", "Uid:\t1\t2\t3\t4\n", "Uid:\t1\t2\n", "Uid:\t1\t2\t3\tx\nGid:\t5\t6\t7\t8\n"} {
		if _, _, err := fsIDs([]byte(bad)); err == nil {
			t.Errorf("%q is fine", bad)
		}
	}
}

// TestKernelAbsent: a program keeps its TCP sockets where the kernel makes no
// SMC ones.
func TestKernelAbsent(t *testing.T) {
	if err := (Kernel{}).Probe(); err == nil {
		t.Skip("needs a kernel without SMC")
	} else if !errors.Is(err, ErrNoKernelSMC) {
		t.Fatal(err)
	}
	res := probeKernel(t, Kernel{}, "kernelecho")
	if res.stats.KernelSockets != 0 || res.stats.NativeSockets[ReasonNoSocket] != 2 {
		t.Errorf("%+v, want 2 native sockets", res.stats)
	}
}

// needKernelSMC skips tests on kernels without SMC. The tests of internal/run
// run them in a guest, whose kernel has it.
func needKernelSMC(t *testing.T, k Kernel) {
	t.Helper()
	if err := k.Probe(); err != nil {
		t.Skipf("needs a kernel with SMC: go test -run Guest ./internal/run: %v", err)
	}
}

// probeKernel runs a probe with the kernel's SMC; it has to succeed.
func probeKernel(t *testing.T, k Kernel, name string, args ...string) result {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	res := launchedWith(t, t.Context(), Config{
		Argv: append([]string{exe}, args...), Env: append(os.Environ(), probeEnv+"="+name, quietRuntime), Kernel: &k,
	}, "")
	if res.status != 0 {
		t.Fatalf("probe %s: status %d\n%s", name, res.status, res.out)
	}
	return res
}

func TestKernelSockets(t *testing.T) {
	for _, k := range []Kernel{{}, {Inet: true}} {
		t.Run(fmt.Sprintf("inet=%v", k.Inet), func(t *testing.T) {
			needKernelSMC(t, k)
			res := probeKernel(t, k, "kernelsockets", strconv.FormatBool(k.Inet))
			if res.stats.KernelSockets != tcpSockets || len(res.stats.NativeSockets) != 0 {
				t.Errorf("%+v, want %d SMC sockets", res.stats, tcpSockets)
			}
			if res := probeKernel(t, k, "kernelecho"); res.stats.KernelSockets != 2 {
				t.Errorf("%+v, want 2 SMC sockets", res.stats)
			}
		})
	}
}

// tcpSockets is how many sockets probeKernelSockets makes that are to be SMC's.
const tcpSockets = 2 * 3 * 4

// probeKernelSockets checks family, flags and number of each kind of socket.
func probeKernelSockets(args []string) error {
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

// probeKernelEcho connects to itself and exchanges a few bytes: two sockets.
func probeKernelEcho([]string) error {
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
	if err := echo(fd, "hello"); err != nil {
		return err
	}
	peer, err := unix.Getpeername(fd)
	if err != nil || toAddrPort(peer) != toAddrPort(sa) {
		return fmt.Errorf("peer %v (%v), want %v", peer, err, sa)
	}
	return <-served
}

func TestKernelLimit(t *testing.T) {
	needKernelSMC(t, Kernel{})
	probeKernel(t, Kernel{}, "kernellimit")
}

// probeKernelLimit: the program's own limit of descriptors counts.
func probeKernelLimit([]string) error {
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

func TestKernelStorm(t *testing.T) {
	needKernelSMC(t, Kernel{})
	res := probeKernel(t, Kernel{}, "kernelstorm")
	if res.stats.KernelSockets != stormSockets {
		t.Errorf("%d sockets, want %d", res.stats.KernelSockets, stormSockets)
	}
}

const stormSockets = 300

// probeKernelStorm makes sockets under a storm of signals: each call succeeds,
// and none leaves a second descriptor behind.
func probeKernelStorm([]string) error {
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

// TestKernelOwner: a socket is in the network namespace of its program and
// belongs to the program's user, not to the launcher's.
func TestKernelOwner(t *testing.T) {
	needKernelSMC(t, Kernel{})
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test -run Guest ./internal/run")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		uid  int
		argv []string
	}{
		{0, []string{exe, "0"}},
		{65534, []string{"setpriv", "--reuid=65534", "--regid=65533", "--clear-groups", exe, "65534"}},
		{0, []string{"unshare", "--net", exe, "0"}},
		{65534, []string{"unshare", "--net", "setpriv", "--reuid=65534", "--regid=65533", "--clear-groups", exe, "65534"}},
	} {
		if _, err := exec.LookPath(tt.argv[0]); err != nil {
			t.Fatal(err)
		}
		res := launchedWith(t, t.Context(), Config{
			Argv: tt.argv, Env: append(os.Environ(), probeEnv+"=kernelowner"), Kernel: &Kernel{},
		}, "")
		if res.status != 0 || res.stats.KernelSockets != 1 {
			t.Errorf("%q: status %d, %+v\n%s", tt.argv, res.status, res.stats, res.out)
		}
	}
}

func probeKernelOwner(args []string) error {
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

func TestKernelBuffers(t *testing.T) {
	k := Kernel{RcvBuf: 3 << 20, SndBuf: 5 << 20}
	needKernelSMC(t, k)
	if os.Geteuid() != 0 {
		t.Skip("needs root: sudo go test -run Guest ./internal/run")
	}
	probeKernel(t, k, "kernelbuffers", strconv.Itoa(k.RcvBuf), strconv.Itoa(k.SndBuf))
	probeKernel(t, Kernel{Inet: true, RcvBuf: k.RcvBuf, SndBuf: k.SndBuf}, "kernelbuffers", strconv.Itoa(k.RcvBuf), strconv.Itoa(k.SndBuf))
}

func probeKernelBuffers(args []string) error {
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
