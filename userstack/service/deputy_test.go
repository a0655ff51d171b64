// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// A foreign is what a launcher passes as the stack's end of a pair: passed, whose bytes arrive at
// victim.
type foreign func(t *testing.T) (passed, victim int)

// clientOf makes a foreign of a connection to the unix socket of a service: the socket of the
// client, or with accepted that of the service. name is the name of the service's socket.
func clientOf(name func(t *testing.T) string, accepted bool) foreign {
	return func(t *testing.T) (int, int) {
		l, c := unixStream(t), unixStream(t)
		at := name(t)
		unixCall(t, unix.SYS_BIND, l, at)
		if err := unix.Listen(l, 1); err != nil {
			t.Fatal(err)
		}
		if at == "" { // the kernel has chosen one
			sa, err := unix.Getsockname(l)
			if err != nil {
				t.Fatal(err)
			}
			at = strings.Replace(sa.(*unix.SockaddrUnix).Name, "@", "\x00", 1)
		}
		unixCall(t, unix.SYS_CONNECT, c, at)
		s, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(s) })
		if accepted {
			return s, c
		}
		return c, s
	}
}

func named(name string) func(*testing.T) string { return func(*testing.T) string { return name } }

func inFile(t *testing.T) string { return filepath.Join(t.TempDir(), "service") }

func unixStream(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// unixCall is bind or connect with a name of any bytes.
func unixCall(t *testing.T, call uintptr, fd int, name string) {
	t.Helper()
	sa := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
	for i := range len(name) {
		sa.Path[i] = int8(name[i])
	}
	if _, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(2+len(name))); e != 0 {
		t.Fatal(e)
	}
}

// pairOf makes a foreign of a socketpair, of which the service at the other end has been given
// the other half.
func pairOf(pair func(t *testing.T) ([2]int, error)) foreign {
	return func(t *testing.T) (int, int) {
		fds, err := pair(t)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = unix.Close(fds[0])
			_ = unix.Close(fds[1])
		})
		return fds[0], fds[1]
	}
}

// pairOfOtherProcess returns a socketpair that a child process has made.
func pairOfOtherProcess(t *testing.T) (pair [2]int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair, err
	}
	defer unix.Close(fds[0])
	theirs := os.NewFile(uintptr(fds[1]), "child")
	defer theirs.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMakesPair$")
	cmd.Env = append(os.Environ(), "SMCR_TEST_MAKES_PAIR=1")
	cmd.ExtraFiles = []*os.File{theirs}
	if out, err := cmd.CombinedOutput(); err != nil {
		return pair, errors.Join(err, errors.New(string(out)))
	}
	oob := make([]byte, unix.CmsgSpace(8))
	_, n, _, _, err := unix.Recvmsg(fds[0], make([]byte, 1), oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return pair, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return pair, err
	}
	got, err := unix.ParseUnixRights(&cmsgs[0])
	return [2]int(got), err
}

// TestMakesPair is the child of pairOfOtherProcess.
func TestMakesPair(t *testing.T) {
	testkind.System(t)
	if os.Getenv("SMCR_TEST_MAKES_PAIR") == "" {
		t.Skip("it is for another test")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Sendmsg(3, []byte("x"), unix.UnixRights(fds[:]...), nil, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// foreigners are the kinds of sockets that the stack must not write to.
var foreigners = map[string]foreign{
	"client of a service":                        clientOf(inFile, false),
	"client of an abstract service":              clientOf(named("\x00smcr deputy test"), false),
	"client of a service with a name of zeros":   clientOf(named("\x00\x00\x00"), false),
	"client of a service with a name of one":     clientOf(named("\x00"), false),
	"client of a service that the kernel named":  clientOf(named(""), false),
	"accepted by a service":                      clientOf(inFile, true),
	"accepted by an abstract service":            clientOf(named("\x00smcr deputy test"), true),
	"accepted by a service with a name of zeros": clientOf(named("\x00\x00\x00"), true),
	"pair of another process":                    pairOf(pairOfOtherProcess),
	"pair of another user": pairOf(func(t *testing.T) ([2]int, error) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to become another user")
		}
		return socketpairAs(65534, unix.SOCK_STREAM)
	}),
	"pair whose end got a name": pairOf(func(t *testing.T) (fds [2]int, err error) {
		if fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			unixCall(t, unix.SYS_BIND, fds[1], "")
		}
		return fds, err
	}),
	"TCP": func(t *testing.T) (int, int) {
		l, addr := listenTCP(t)
		c := tcpSocket(t, 0)
		if err := unix.Connect(c, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
			t.Fatal(err)
		}
		f, err := accept(t, l).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return c, int(f.Fd())
	},
}

// untouched wants that a victim gets no byte. The victim asks for the credentials of who writes.
func untouched(t *testing.T, victim int) {
	t.Helper()
	b, oob := make([]byte, 100), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := unix.Recvmsg(victim, b, oob, unix.MSG_DONTWAIT)
	if n <= 0 || err != nil {
		return
	}
	who := "nobody"
	if cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(cmsgs) > 0 {
		if cred, err := unix.ParseUnixCredentials(&cmsgs[0]); err == nil && int(cred.Pid) == os.Getpid() && int(cred.Uid) == os.Geteuid() {
			who = "the process and the user of the stack"
		}
	}
	t.Errorf("the victim has got %q from %s", b[:n], who)
}

// TestDeputy: the stack writes the bytes of a peer into no socket but an end of a pair that the
// process of the launcher has made.
func TestDeputy(t *testing.T) {
	testkind.System(t)
	for name, make := range foreigners {
		t.Run(name, func(t *testing.T) {
			passed, victim := make(t)
			_ = unix.SetsockoptInt(victim, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) // not on TCP
			_, c, peer := declined(t, variousSettings[0])
			if _, err := io.WriteString(peer, "of the peer"); err != nil {
				t.Fatal(err)
			}
			if err := c.Attach(passed); err != nil {
				t.Fatal(err)
			}
			// What the peer sent arrives there, or the connection ends.
			var ev broker.Event
			select {
			case ev = <-c.Events():
			case <-time.After(testTime):
				t.Error("the connection goes on")
			}
			untouched(t, victim)
			if ev.Kind != 0 && (ev.Kind != broker.EventClosed || ev.Errno == 0 || !strings.Contains(ev.Text, "the stack does not use this end")) {
				t.Errorf("%+v", ev)
			}
			if broker.MarkedUnread(passed) {
				t.Error("the socket was changed")
			}
			_ = peer.Close()
		})
	}
}

func write(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte("of a program")); err != nil {
		t.Fatal(err)
	}
}

// TestDeputyDetour: a detour neither reads nor writes a socket but the end that the launcher was
// given, and an end of a pair that the launcher has made.
func TestDeputyDetour(t *testing.T) {
	ownPair := pairOf(func(*testing.T) ([2]int, error) {
		return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	})
	for name, make := range map[string]func(t *testing.T, own int) (former, end, victim int){
		"former is a client of a service": func(t *testing.T, _ int) (int, int, int) {
			app, end := ownPair(t)
			write(t, app)
			passed, victim := foreigners["client of a service"](t)
			return passed, end, victim
		},
		"former is a pair of the launcher": func(t *testing.T, _ int) (int, int, int) {
			app, end := ownPair(t)
			write(t, app)
			passed, victim := ownPair(t)
			return passed, end, victim
		},
		"end is a client of a service": func(t *testing.T, own int) (int, int, int) {
			passed, victim := foreigners["client of a service"](t)
			return own, passed, victim
		},
		"end is a pair of another process": func(t *testing.T, own int) (int, int, int) {
			passed, victim := foreigners["pair of another process"](t)
			return own, passed, victim
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			b := newLocalBed(t)
			cc, _, ev := b.connect(b.launcher(os.Geteuid()))
			p := b.end(ev)
			if err := cc.Proceed(); err != nil {
				t.Fatal(err)
			}
			sc := b.handOver(b.server, b.accept())
			q := b.end(next(t, sc, broker.EventLocal))
			exchange(t, p, q)
			rc, err := p.(*net.UnixConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var victim int
			if cerr := rc.Control(func(fd uintptr) {
				var former, end int
				former, end, victim = make(t, int(fd))
				err = cc.Detour(former, end)
			}); cerr != nil || err != nil {
				t.Fatal(cerr, err)
			}
			if _, err := io.WriteString(q, "of the peer"); err != nil {
				t.Fatal(err)
			}
			// An option is answered after the detour was refused, or has begun.
			_, _ = cc.GetOption(t.Context(), 0, unix.SOL_SOCKET, unix.SO_TYPE, 4)
			// Real time: the bytes would go their way meanwhile.
			time.Sleep(50 * time.Millisecond)
			untouched(t, victim)
			got := [11]byte{}
			if n, err := io.ReadFull(p, got[:]); err != nil || string(got[:n]) != "of the peer" {
				t.Errorf("the program reads %q, %v: the stack has read its end", got[:n], err)
			}
		})
	}
}

// TestEndAlreadyClosed: a program may have closed its end before the stack gets the other one.
func TestEndAlreadyClosed(t *testing.T) {
	fd, c, peer := declined(t, variousSettings[0])
	if err := unix.Close(dup2(t, fd)); err != nil { // the pair took its place
		t.Fatal(err)
	}
	p, end := socketpair(t)
	p.close()
	f, err := end.File()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = end.Close()
	if got, err := io.ReadAll(peer); err != nil || len(got) != 0 {
		t.Errorf("the peer reads %q, %v", got, err)
	}
	_ = peer.Close()
	if ev := next(t, c, broker.EventClosed); ev.Text != "" || ev.Errno != 0 {
		t.Errorf("%+v", ev)
	}
}
