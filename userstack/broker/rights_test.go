// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	rawRight   = Rights(1 << unix.CAP_NET_RAW)
	adminRight = Rights(1 << unix.CAP_NET_ADMIN)
)

// The main goroutine keeps the main thread, which /proc takes for the process:
// tests leave threads behind that are not what they were.
var _ = func() bool { runtime.LockOSThread(); return true }()

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || RightsOf("self")&(rawRight|adminRight) != rawRight|adminRight {
		t.Skip("needs root, with CAP_NET_RAW and CAP_NET_ADMIN, to give them up")
	}
}

func effective(t *testing.T, task string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/task/" + task + "/status")
	if err != nil {
		return "" // it has ended
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// TestRightsDo: the kernel sees the rights, and every thread has what it had
// when it is over.
func TestRightsDo(t *testing.T) {
	needRoot(t)
	before := effective(t, strconv.Itoa(os.Getpid()))
	mark := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) }
	repair := func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) }
	var wg sync.WaitGroup
	for _, tt := range []struct {
		r            Rights
		mark, repair error
	}{
		{0, unix.EPERM, unix.EPERM},
		{rawRight, nil, unix.EPERM},
		{adminRight, nil, nil},
		{^(rawRight | adminRight), unix.EPERM, unix.EPERM},
		{AllRights, nil, nil},
	} {
		fd := tcpSocket(t)
		wg.Go(func() {
			for range 50 {
				if err := tt.r.Do(func() error { return mark(fd) }); !errors.Is(err, tt.mark) {
					t.Errorf("rights %#x: SO_MARK: %v, want %v", uint64(tt.r), err, tt.mark)
				}
				if err := tt.r.Do(func() error { return repair(fd) }); !errors.Is(err, tt.repair) {
					t.Errorf("rights %#x: TCP_REPAIR: %v, want %v", uint64(tt.r), err, tt.repair)
				}
			}
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		if got := effective(t, e.Name()); got != before && got != "" {
			t.Errorf("thread %s has %s, had %s", e.Name(), got, before)
		}
	}
}

// TestRightsNeverMore: rights that the caller has not are not to be had.
func TestRightsNeverMore(t *testing.T) {
	needRoot(t)
	fd := tcpSocket(t)
	err := Rights(0).Do(func() error { // on a thread of its own
		err, restored := AllRights.do(func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) })
		if !restored {
			t.Error("not restored")
		}
		return err
	})
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("SO_MARK: %v, want EPERM", err)
	}
}

// TestRightsThreadEnds: a thread that does not get its capabilities back serves
// nobody else.
func TestRightsThreadEnds(t *testing.T) {
	needRoot(t)
	tid := 0
	if err := Rights(0).Do(func() error {
		tid = unix.Gettid()
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		return unix.Capset(&h, &none[0])
	}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); effective(t, strconv.Itoa(tid)) != ""; {
		if time.Now().After(end) {
			t.Fatalf("thread %d lives", tid)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestRightsOf tells the rights of threads and processes.
func TestRightsOf(t *testing.T) {
	needRoot(t)
	if got := RightsOf("0"); got != 0 {
		t.Errorf("of no task: %#x", uint64(got))
	}
	for _, r := range []Rights{0, rawRight, rawRight | adminRight} {
		if err := r.Do(func() error {
			if got := RightsOf(strconv.Itoa(unix.Gettid())); got != r {
				t.Errorf("of a thread: %#x, want %#x", uint64(got), uint64(r))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	// All of them, but in a user namespace of its own.
	cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sh", "-c", "grep CapEff /proc/self/status; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := out.Read(b)
	if err != nil || strings.Contains(string(b[:n]), "0000000000000000") {
		t.Fatalf("%q, %v", b[:n], err)
	}
	if got := RightsOf(strconv.Itoa(cmd.Process.Pid)); got != 0 {
		t.Errorf("of another user namespace: %#x", uint64(got))
	}
	_ = in.Close()
	_ = cmd.Wait()
}

// TestWithRights: which options the kernel is asked about at all, and with which
// rights.
func TestWithRights(t *testing.T) {
	needRoot(t)
	const set, get = true, false
	for _, tt := range []struct {
		set         bool
		level, name int
		with        Rights // that the kernel sees, of NET_RAW and NET_ADMIN
		refused     error
	}{
		{set, unix.SOL_SOCKET, unix.SO_KEEPALIVE, rawRight | adminRight, nil}, // not worth the trouble
		{set, unix.IPPROTO_TCP, unix.TCP_NODELAY, rawRight | adminRight, nil},
		{set, unix.SOL_SOCKET, unix.SO_MARK, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_CONGESTION, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_MD5SIG, rawRight, nil},
		{get, unix.IPPROTO_TCP, unix.TCP_REPAIR, rawRight, nil},
		{set, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0, syscall.EPERM},
		{set, unix.IPPROTO_TCP, unix.TCP_ULP, 0, syscall.EPERM},
		{set, unix.IPPROTO_IP, unix.IP_TRANSPARENT, rawRight, nil},
		{set, unix.IPPROTO_IP, 64, 0, nil},   // IPT_SO_SET_REPLACE
		{set, unix.IPPROTO_IP, 128, 0, nil},  // EBT_SO_SET_ENTRIES
		{set, unix.IPPROTO_IPV6, 64, 0, nil}, // IP6T_SO_SET_REPLACE
		{get, unix.IPPROTO_IP, 80, rawRight, nil},
		{set, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, rawRight | adminRight, nil},
		{set, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, rawRight, nil},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, 0, syscall.EPERM},
		{set, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, 0, syscall.EPERM},
		{get, unix.SOL_SOCKET, unix.SO_GET_FILTER, 0, syscall.EPERM},
		{get, unix.SOL_SOCKET, soPeerPidfd, 0, syscall.EPERM},
		{set, unix.SOL_TLS, 1, 0, syscall.ENOPROTOOPT},
		{set, unix.SOL_PACKET, 1, 0, syscall.ENOPROTOOPT},
		{get, -1, -1, 0, syscall.ENOPROTOOPT},
	} {
		called := false
		err := WithRights(rawRight, tt.set, tt.level, tt.name, func() error {
			called = true
			if got := RightsOf(strconv.Itoa(unix.Gettid())) & (rawRight | adminRight); got != tt.with {
				t.Errorf("set %v, level %d, option %d: rights %#x, want %#x", tt.set, tt.level, tt.name, uint64(got), uint64(tt.with))
			}
			return nil
		})
		if err != tt.refused || called != (err == nil) {
			t.Errorf("set %v, level %d, option %d: %v, want %v; called: %v", tt.set, tt.level, tt.name, err, tt.refused, called)
		}
	}
}

// asking is a handler that tells with which rights it is asked.
type asking struct {
	handler
	seen chan Rights
}

func (a *asking) SetOption(_ context.Context, _ *Conn, r Rights, _, _ int, _ []byte) error {
	a.seen <- r
	return nil
}

func (a *asking) GetOption(_ context.Context, _ *Conn, r Rights, _, _, _ int) ([]byte, error) {
	a.seen <- r
	return nil, nil
}

// TestSessionRights: a launcher that is not root's has no rights to give to its
// program, and one that is has its own at most.
func TestSessionRights(t *testing.T) {
	needRoot(t)
	own := RightsOf("self")
	for _, tt := range []struct {
		uid         int
		asked, want Rights
	}{
		{0, AllRights, own}, {0, rawRight, rawRight}, {0, 0, 0}, {65534, AllRights, 0},
	} {
		a := &asking{seen: make(chan Rights, 1)}
		a.connect = func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
			_ = c.Established(ctx, true)
			<-ctx.Done()
		}
		fds, err := socketpairOf(tt.uid)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		service, launcher := unixConn(t, fds[0]), unixConn(t, fds[1])
		wg.Go(func() { _ = (&Server{Handler: a}).ServeConn(ctx, service) })
		cl, err := NewClient(t.Context(), launcher, "program")
		if err != nil {
			t.Fatal(err)
		}
		c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		if err := c.SetOption(t.Context(), tt.asked, unix.SOL_SOCKET, unix.SO_MARK, make([]byte, 4)); err != nil {
			t.Error(err)
		}
		if got := <-a.seen; got != tt.want {
			t.Errorf("user %d sets an option with %#x: %#x, want %#x", tt.uid, uint64(tt.asked), uint64(got), uint64(tt.want))
		}
		if _, err := c.GetOption(t.Context(), tt.asked, unix.SOL_SOCKET, unix.SO_MARK, 4); err != nil {
			t.Error(err)
		}
		if got := <-a.seen; got != tt.want {
			t.Errorf("user %d reads an option with %#x: %#x, want %#x", tt.uid, uint64(tt.asked), uint64(got), uint64(tt.want))
		}
		_ = cl.Close()
		cancel()
		wg.Wait()
	}
}

// socketpairOf makes a socketpair whose peer credentials are those of uid.
func socketpairOf(uid int) (fds [2]int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			err = e
			return
		}
		fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	}()
	<-done
	return fds, err
}

func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "session")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// peerEnv makes TestPeerRights the launcher that it asks about.
const peerEnv = "SMCR_BROKER_PEER"

// TestPeerRights: a launcher that calls itself root in a user namespace of its
// own, where the kernel maps it to root, has no rights; nor has a root that has
// given up its capabilities.
func TestPeerRights(t *testing.T) {
	needRootOrPeer(t)
	if path := os.Getenv(peerEnv); path != "" {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 1)) // until the test is done
		return
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		as   []string
		want Rights
	}{
		{nil, RightsOf("self")},
		{[]string{"unshare", "--user", "--map-root-user"}, 0},
		{[]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}, 0},
	} {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		argv := append(tt.as, exe, "-test.run=^TestPeerRights$")
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), peerEnv+"="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		// The unit of the service has fewer capabilities than root.
		for _, ours := range []Rights{AllRights, rawRight | adminRight} {
			if err := ours.Do(func() error {
				p, err := peer(c)
				if err != nil || p.UID != 0 || p.rights != tt.want {
					t.Errorf("%q: %+v, %v; want rights %#x", tt.as, p, err, uint64(tt.want))
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		_ = c.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(fmt.Errorf("%q: %w", tt.as, err))
		}
	}
}

func needRootOrPeer(t *testing.T) {
	t.Helper()
	if os.Getenv(peerEnv) == "" {
		needRoot(t)
	}
}
