// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/internal/rights"
)

const (
	rawRight   = rights.Rights(1 << unix.CAP_NET_RAW)
	adminRight = rights.Rights(1 << unix.CAP_NET_ADMIN)
)

// The main goroutine keeps the main thread, which /proc takes for the process:
// tests leave threads behind that are not what they were.
var _ = func() bool { runtime.LockOSThread(); return true }()

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || rights.Of("self")&(rawRight|adminRight) != rawRight|adminRight {
		t.Skip("needs root, with CAP_NET_RAW and CAP_NET_ADMIN, to give them up")
	}
}

// asking is a handler that tells with which rights it is asked.
type asking struct {
	handler
	seen chan rights.Rights
}

func (a *asking) SetOption(_ context.Context, _ *Conn, r rights.Rights, _, _ int, _ []byte) error {
	a.seen <- r
	return nil
}

func (a *asking) GetOption(_ context.Context, _ *Conn, r rights.Rights, _, _, _ int) ([]byte, error) {
	a.seen <- r
	return nil, nil
}

// TestSessionRights: a launcher that is not root's has no rights to give to its
// program, and one that is has its own at most.
func TestSessionRights(t *testing.T) {
	needRoot(t)
	own := rights.Of("self")
	for _, tt := range []struct {
		uid         int
		asked, want rights.Rights
	}{
		{0, rights.All, own}, {0, rawRight, rawRight}, {0, 0, 0}, {65534, rights.All, 0},
	} {
		a := &asking{seen: make(chan rights.Rights, 1)}
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
	testkind.System(t)
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
		want rights.Rights
	}{
		{nil, rights.Of("self")},
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
		for _, ours := range []rights.Rights{rights.All, rawRight | adminRight} {
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
