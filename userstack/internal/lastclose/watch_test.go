// SPDX-License-Identifier: Apache-2.0

package lastclose

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

const testTime = 20 * time.Second

// childEnv names the part of a test that runs in a process of its own, which has the socket
// as descriptor 3.
const childEnv = "SMCR_LASTCLOSE_TEST"

const childFD = 3

var children = map[string]func(){
	"exit":  func() {},
	"sleep": func() { time.Sleep(testTime) },
	"close": func() { _ = unix.Close(childFD) },
	"dup2": func() {
		fd, _ := unix.Open("/dev/null", unix.O_RDONLY, 0)
		_ = unix.Dup3(fd, childFD, 0)
	},
	"close_range": func() { _ = unix.CloseRange(childFD, childFD, 0) },
	"exec": func() {
		_, _ = unix.FcntlInt(childFD, unix.F_SETFD, unix.FD_CLOEXEC)
		_ = unix.Exec("/bin/sleep", []string{"sleep", "20"}, nil)
	},
}

func TestMain(m *testing.M) {
	if f := children[os.Getenv(childEnv)]; f != nil {
		f()
		fmt.Println("done")
		if os.Getenv(childEnv) != "exit" {
			time.Sleep(testTime) // the process must not be what closes the descriptor
		}
		return
	}
	os.Exit(m.Run())
}

// bed is a Watch and a goroutine that reads its reports.
type bed struct {
	t *testing.T
	*Watch
	reports chan report
}

type report struct {
	number uint64
	unread bool
}

func newBed(t *testing.T) *bed {
	t.Helper()
	w, err := Load()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, Watch: w, reports: make(chan report, MaxFiles)}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			p := []unix.PollFd{{Fd: int32(w.FD()), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 50); n > 0 {
				w.Read(func(n uint64, unread bool) { b.reports <- report{n, unread} })
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// pair makes a socketpair, adds the first socket, and returns a second descriptor of it.
func (b *bed) pair() (number uint64, held, other, peer int) {
	b.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, fd := range fds {
		b.t.Cleanup(func() { _ = unix.Close(fd) })
	}
	if number, err = Number(fds[0]); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Add(number); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.Remove(number) })
	if other, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		b.t.Fatal(err)
	}
	return number, fds[0], other, fds[1]
}

func (b *bed) arm(number uint64, fd int) {
	b.t.Helper()
	if err := b.Arm(number, fd); err != nil {
		b.t.Fatal(err)
	}
}

// expect waits for the report of a socket without data.
func (b *bed) expect(number uint64) {
	b.t.Helper()
	b.expectReport(report{number, false})
}

func (b *bed) expectReport(want report) {
	b.t.Helper()
	select {
	case got := <-b.reports:
		if got != want {
			b.t.Fatalf("report %+v, want %+v", got, want)
		}
	case <-time.After(testTime):
		b.t.Fatal("the last close was not reported")
	}
}

// silence checks that nothing is reported.
func (b *bed) silence(why string) {
	b.t.Helper()
	select {
	case got := <-b.reports:
		b.t.Fatalf("report %+v although %s", got, why)
	case <-time.After(50 * time.Millisecond):
	}
}

// TestLastCloseProcess: each way by which another process gives up a descriptor.
func TestLastCloseProcess(t *testing.T) {
	testkind.System(t)
	for name := range children {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			number, held, other, _ := b.pair()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childEnv+"="+name)
			f := os.NewFile(uintptr(other), "")
			cmd.ExtraFiles = []*os.File{f}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait() //nolint:errcheck // it is killed
			defer cmd.Process.Kill()
			b.arm(number, held)
			if name == "sleep" {
				b.silence("a process has it")
			}
			_ = f.Close()
			if name == "sleep" {
				b.silence("a process has it")
				_ = cmd.Process.Kill()
			}
			b.expect(number)
			b.silence("it was reported before")
		})
	}
}

// TestLastCloseEarly: the descriptor is closed before Arm.
func TestLastCloseEarly(t *testing.T) {
	testkind.System(t)
	b := newBed(t)
	number, held, other, _ := b.pair()
	_ = unix.Close(other)
	b.silence("it is not armed")
	b.arm(number, held)
	b.expect(number)
}

// TestLastCloseMessage: a descriptor in a message is a reference, until somebody receives
// it and closes it, or the message is discarded.
func TestLastCloseMessage(t *testing.T) {
	testkind.System(t)
	for _, received := range []bool{false, true} {
		t.Run(fmt.Sprint(received), func(t *testing.T) {
			b := newBed(t)
			number, held, other, _ := b.pair()
			way, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(way[0])
			if err := unix.Sendmsg(way[0], []byte{0}, unix.UnixRights(other), nil, 0); err != nil {
				t.Fatal(err)
			}
			b.arm(number, held)
			_ = unix.Close(other)
			b.silence("it is in a message")
			if received {
				oob := make([]byte, unix.CmsgSpace(4))
				_, n, _, _, err := unix.Recvmsg(way[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				m, err := unix.ParseSocketControlMessage(oob[:n])
				if err != nil {
					t.Fatal(err)
				}
				fds, err := unix.ParseUnixRights(&m[0])
				if err != nil {
					t.Fatal(err)
				}
				b.silence("it was received")
				_ = unix.Close(fds[0])
			}
			_ = unix.Close(way[1])
			b.expect(number)
		})
	}
}

// TestLastCloseInCall: a call that still runs when another thread closes the descriptor.
func TestLastCloseInCall(t *testing.T) {
	testkind.System(t)
	b := newBed(t)
	number, held, other, peer := b.pair()
	b.arm(number, held)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = unix.Read(other, make([]byte, 1)) })
	time.Sleep(50 * time.Millisecond)
	_ = unix.Close(other)
	b.silence("a thread reads it")
	if _, err := unix.Write(peer, []byte{1}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	b.expect(number)
}

// TestLastCloseUnread: a report says whether there was data that nobody had read. Data after
// the close does not count.
func TestLastCloseUnread(t *testing.T) {
	testkind.System(t)
	b := newBed(t)
	for _, unread := range []bool{false, true} {
		number, held, other, peer := b.pair()
		b.arm(number, held)
		if _, err := unix.Write(peer, []byte("ab")); err != nil {
			t.Fatal(err)
		}
		size := 2
		if unread {
			size = 1
		}
		if _, err := unix.Read(other, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(other)
		if _, err := unix.Write(peer, []byte("late")); err != nil {
			t.Fatal(err)
		}
		b.expectReport(report{number, unread})
	}
}

// TestLastCloseAtOnce: many descriptors are closed at the same time, by several threads and
// processes, while this process uses its own. There is exactly one report, after the last.
func TestLastCloseAtOnce(t *testing.T) {
	testkind.System(t)
	b := newBed(t)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		number, held, other, _ := b.pair()
		b.arm(number, held)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			fd, err := unix.FcntlInt(uintptr(other), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				<-start
				_ = unix.Close(fd)
			})
		}
		wg.Go(func() {
			<-start
			for range 20 {
				_, _ = unix.GetsockoptInt(held, unix.SOL_SOCKET, unix.SO_TYPE)
			}
		})
		runtime.Gosched()
		close(start)
		_ = unix.Close(other)
		wg.Wait()
		b.expect(number)
		b.Remove(number)
	}
	b.silence("all were reported")
}

// TestLastCloseAll: all sockets of a full Watch are reported although nobody reads reports
// meanwhile, and a further one is refused.
func TestLastCloseAll(t *testing.T) {
	testkind.System(t)
	// The Go runtime raises the soft limit to the hard one, which root may raise too.
	if limit := (unix.Rlimit{Cur: 2 * MaxFiles, Max: 2 * MaxFiles}); unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		t.Log("cannot set the limit of descriptors")
	}
	w, err := Load()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fds := func() int {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fds[1])
		return fds[0]
	}
	want := map[uint64]bool{}
	for i := range MaxFiles {
		fd := fds()
		defer unix.Close(fd)
		number, err := Number(fd)
		if err == nil {
			err = w.Add(number)
		}
		if err == nil {
			err = w.Arm(number, fd)
		}
		if err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		want[number] = true
	}
	fd := fds()
	defer unix.Close(fd)
	if number, _ := Number(fd); !errors.Is(w.Add(number), ErrFull) {
		t.Error("a Watch takes more than MaxFiles sockets")
	}
	w.Read(func(n uint64, _ bool) {
		if !want[n] {
			t.Errorf("socket %d was reported twice, or is not watched", n)
		}
		delete(want, n)
		w.Remove(n)
	})
	if len(want) != 0 {
		t.Errorf("%d sockets were not reported", len(want))
	}
	w.Relax()
	if len(w.links) != 0 {
		t.Error("the programs are attached although no socket is watched")
	}
}
