// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/internal/rights"
)

// The two users of these tests.
const someUser, otherUser = 65534, 65533

// asUser calls f on a thread that is a user's, without capabilities unless it is root's.
func asUser(uid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		id := uintptr(uid)
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, e := unix.RawSyscall(call, id, id, id); e != 0 {
				done <- e
				return
			}
		}
		done <- f()
	}()
	return <-done
}

// claim sends a message that says it is from process pid of user uid (SCM_CREDENTIALS).
func claim(fd, pid, uid int) error {
	return unix.Sendmsg(fd, []byte("x"), unix.UnixCredentials(&unix.Ucred{Pid: int32(pid), Uid: uint32(uid), Gid: uint32(uid)}), nil, unix.MSG_DONTWAIT)
}

// TestForgedCredentials: the service believes the kernel about who connected, and nothing that
// anybody says, whoever has the socket, sends over it or passes it on. In the table, what is tried
// with a socket that has been connected by a user, and who the service takes the launcher for.
func TestForgedCredentials(t *testing.T) {
	testkind.System(t)
	needRoot(t)
	for name, tt := range map[string]struct {
		connects int
		forge    func(fd int) error
		err      error // of forge
		rights   bool
	}{
		"a user says nothing": {connects: someUser, forge: func(int) error { return nil }},
		"a user claims to be root": {connects: someUser, err: unix.EPERM, forge: func(fd int) error {
			return asUser(someUser, func() error { return claim(fd, os.Getpid(), 0) })
		}},
		"a user claims to be another user": {connects: someUser, err: unix.EPERM, forge: func(fd int) error {
			return asUser(someUser, func() error { return claim(fd, os.Getpid(), otherUser) })
		}},
		"a user claims to be another process": {connects: someUser, err: unix.EPERM, forge: func(fd int) error {
			return asUser(someUser, func() error { return claim(fd, 1, someUser) })
		}},
		"another user gets the socket": {connects: someUser, forge: func(fd int) error {
			return asUser(otherUser, func() error { return claim(fd, os.Getpid(), otherUser) })
		}},
		"root gets the socket, and claims to be root":      {connects: someUser, forge: func(fd int) error { return claim(fd, os.Getpid(), 0) }},
		"root gets the socket, and claims to be process 1": {connects: someUser, forge: func(fd int) error { return claim(fd, 1, 0) }},
		"root has asked for the credentials of the service": {connects: someUser, forge: func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSPIDFD, 1))
		}},
		"root connects and becomes a user": {connects: 0, rights: true, forge: func(fd int) error {
			return asUser(someUser, func() error { return claim(fd, os.Getpid(), someUser) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for dir := filepath.Dir(l.Addr().String()); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(l.Addr().String(), 0o666); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := asUser(tt.connects, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()}) }); err != nil {
				t.Fatal(err)
			}
			if err := tt.forge(fd); !errors.Is(err, tt.err) {
				t.Errorf("forging: %v, want %v", err, tt.err)
			}
			c, err := l.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			p, err := peer(c)
			if err != nil {
				t.Fatal(err)
			}
			want := rights.Rights(0)
			if tt.rights {
				want = rights.Permitted(os.Getpid())
			}
			if p.UID != uint32(tt.connects) || p.PID != os.Getpid() || p.rights != want {
				t.Errorf("the launcher is %+v; want user %d, process %d, rights %#x", p, tt.connects, os.Getpid(), uint64(want))
			}
		})
	}
}

// unseenEnv makes TestUnseenPairs the service in a PID namespace of its own.
const unseenEnv = "SMCR_BROKER_UNSEEN"

// TestUnseenPairs: the number of every process in a PID namespace that the service does not see is
// 0, such as of the other containers of a pod. Still the service uses a pair of the launcher's
// process, and none of another one of the same user.
func TestUnseenPairs(t *testing.T) {
	testkind.System(t)
	if os.Getenv(unseenEnv) != "" {
		l, err := peer(unixConn(t, 3))
		if err != nil || l.PID != 0 {
			t.Fatalf("%+v, %v: the test shows nothing", l, err)
		}
		if err := l.ownPair(4); err != nil {
			t.Errorf("the launcher's own pair: %v", err)
		}
		for fd, whose := range map[int]string{5: "of a process that lives", 6: "of one that has ended"} {
			if err := l.ownPair(fd); err == nil || !strings.Contains(err.Error(), "another process than the launcher") {
				t.Errorf("a pair %s: %v", whose, err)
			}
		}
		return
	}
	needRoot(t)
	var theirs []*os.File
	pass := func(fds [2]int) {
		f := os.NewFile(uintptr(fds[0]), "pair")
		theirs = append(theirs, f)
		t.Cleanup(func() {
			_ = f.Close()
			_ = unix.Close(fds[1])
		})
	}
	for _, typ := range []int{unix.SOCK_SEQPACKET, unix.SOCK_STREAM} {
		fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		pass(fds)
	}
	for _, lives := range []bool{true, false} {
		fds, end := pairOfChild(t)
		pass(fds)
		if !lives {
			end()
		}
	}
	if processOf(int(theirs[1].Fd())) == processOf(int(theirs[2].Fd())) {
		t.Skip("this kernel has one file for all pidfds (before Linux 6.9)")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUnseenPairs$")
	cmd.Env = append(os.Environ(), unseenEnv+"=1")
	cmd.ExtraFiles = theirs
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// childEnv makes TestChildPair the process that makes a pair.
const childEnv = "SMCR_BROKER_PAIR"

// pairOfChild returns a pair that a child process has made, which lives until end is called.
func pairOfChild(t *testing.T) (pair [2]int, end func()) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "own"), os.NewFile(uintptr(fds[1]), "child")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildPair$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = own.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	tv := unix.NsecToTimeval(int64(time.Minute))
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, unix.CmsgSpace(8))
	_, n, _, _, err := unix.Recvmsg(fds[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseRights(oob[:n])
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	return [2]int(got), end
}

// TestChildPair is the child of pairOfChild.
func TestChildPair(t *testing.T) {
	testkind.System(t)
	if os.Getenv(childEnv) == "" {
		t.Skip("it is for another test")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Sendmsg(3, []byte("x"), unix.UnixRights(fds[:]...), nil, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Read(3, make([]byte, 1)) // until the test has what it needs
}
