// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestHandOver: when connect() or accept() has returned, the launcher has no descriptor of the
// socket any more. So the close of the program ends the connection at once, also if the launcher
// does not go on.
func TestHandOver(t *testing.T) {
	testkind.System(t)
	onOneProcessor(t)
	for _, tt := range []struct {
		over  string
		stack *fakeStack
	}{
		{"here", &fakeStack{notCandidate: true, byOption: true}}, // addresses of this machine are known as such
		{"tcp", &fakeStack{notCandidate: true, byOption: true}},
		{"smc", &fakeStack{}},
	} {
		for _, how := range []string{"nonblock", "block"} {
			t.Run(fmt.Sprintf("%s %v %s", tt.over, tt.stack.byOption, how), func(t *testing.T) {
				stack := tt.stack.fresh()
				stack.t = t
				exe, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{
					Argv: []string{exe, how, tt.over, "100"}, Env: append(os.Environ(), probeEnv+"=handover", quietRuntime),
					Broker: stack.client(), apart: new(tt.over != "here"),
				}
				if res := launchedWith(t, t.Context(), cfg, ""); res.status != 0 {
					t.Errorf("status %d\n%s", res.status, res.out)
				}
			})
		}
	}
}

// onOneProcessor lets this process and the programs that it starts use one processor alone, until
// the end of the test. A program that has its answer then runs before the launcher goes on.
func onOneProcessor(t *testing.T) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	set := func(cpus *unix.CPUSet) {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range threads {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.SchedSetaffinity(tid, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	var one unix.CPUSet
	for i := 0; one.Count() == 0; i++ {
		if all.IsSet(i) {
			one.Set(i)
		}
	}
	t.Cleanup(func() { set(&all) })
	set(&one)
}

// probeHandOver makes connections to itself, and stops the launcher when a call has returned.
func probeHandOver(args []string) error {
	how, over := args[0], args[1]
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	launcher := os.Getppid()
	// If this process ends too early, the test must go on.
	dog := exec.Command("sh", "-c", fmt.Sprintf("while sleep 10 && kill -CONT %d && kill -0 %d; do :; done 2>/dev/null", launcher, os.Getpid()))
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := dog.Start(); err != nil {
		return err
	}
	defer func() {
		_ = unix.Kill(-dog.Process.Pid, unix.SIGKILL)
		_ = dog.Wait()
	}()
	flags := unix.SOCK_CLOEXEC
	if how == "nonblock" {
		flags |= unix.SOCK_NONBLOCK
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(l)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(l, 16)); err != nil {
		return err
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	for range n {
		if err := handOver(launcher, l, name, flags, over); err != nil {
			return err
		}
	}
	return nil
}

// handOver makes one connection.
func handOver(launcher, l int, to unix.Sockaddr, flags int, over string) error {
	smc := over == "smc"
	c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(c)
	// The server of SMC answers when it has accepted.
	connected := make(chan error, 1)
	connect := func() error {
		if err := unix.Connect(c, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connect: %w", err)
		}
		if over != "here" { // the stack has the socket, too
			return nil
		}
		return stopped(launcher, func() error { return heldBy(launcher, c, "connect") })
	}
	if smc {
		go func() { connected <- connect() }()
	} else {
		connected <- connect()
	}
	if err := wait(l, unix.POLLIN, patience/2); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	a := -1
	for end := time.Now().Add(patience / 2); ; {
		if a, _, err = acceptAgain(l, flags); !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if smc {
		err := stopped(launcher, func() error { return heldBy(launcher, a, "accept") })
		err = errors.Join(err, <-connected)
		return errors.Join(err, unix.Close(a))
	}
	// Until then, a non-blocking connect() needs the launcher, also when the server has accepted.
	if err := wait(c, unix.POLLOUT, patience/2); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	err = stopped(launcher, func() error {
		if err := errors.Join(heldBy(launcher, a, "accept"), unix.Close(a)); err != nil {
			return err
		}
		if err := wait(c, unix.POLLIN, time.Second); err != nil {
			return fmt.Errorf("the peer does not see the close: %w", err)
		}
		return nil
	})
	return errors.Join(err, <-connected)
}

// stopped calls f while the launcher is stopped.
func stopped(launcher int, f func() error) error {
	if err := unix.Kill(launcher, unix.SIGSTOP); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.Kill(launcher, unix.SIGCONT))
}

// heldBy returns an error if the launcher has a descriptor of socket fd.
func heldBy(launcher, fd int, what string) error {
	inode, err := inodeOf(fd)
	if err != nil {
		return err
	}
	link := fmt.Sprintf("socket:[%d]", inode)
	dir := fmt.Sprintf("/proc/%d/fd", launcher)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if got, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && got == link {
			return fmt.Errorf("%s has returned, and the launcher has its socket", what)
		}
	}
	return nil
}

// wait waits for events of fd. Signals of Go's scheduler interrupt it.
func wait(fd int, events int16, limit time.Duration) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll(p, int(max(time.Until(end), 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && n == 0:
			return errors.New("no event")
		default:
			return err
		}
	}
}

// TestHandOverInterrupted: signals come at any moment of accept() and connect(), also together with
// the answer. A call that the kernel repeats returns what it would have returned: the same descriptor,
// success, or the error.
func TestHandOverInterrupted(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for name, stack := range map[string]*fakeStack{
		"tcp": {notCandidate: true}, "by option": {notCandidate: true, byOption: true}, "smc": {},
	} {
		for _, which := range []string{"server", "client", "error"} {
			t.Run(name+" "+which, func(t *testing.T) {
				stack := stack.fresh()
				stack.t = t
				cfg := Config{Argv: []string{"timeout", "60", "python3", "testdata/interrupted.py", which, "300"}, Broker: stack.client(), NoAdapt: true}
				if res := launchedWith(t, t.Context(), cfg, ""); res.status != 0 {
					t.Errorf("status %d\n%s", res.status, res.out)
				}
			})
		}
	}
}

// TestAcceptAlarmed: a timer interrupts accept() a thousand times in a second, as that of a profiler
// does. Each repeated call takes the place of the one before, so the launcher needs no more
// descriptors for it.
func TestAcceptAlarmed(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	stack := (&fakeStack{}).fresh()
	stack.t = t
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	before, most := open(), 0
	over, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
				most = max(most, open())
			}
		}
	}()
	cfg := Config{Argv: []string{"timeout", "60", "python3", "testdata/alarmed.py", "1"}, Broker: stack.client(), NoAdapt: true}
	res := launchedWith(t, t.Context(), cfg, "")
	close(over)
	<-sampled
	if res.status != 0 {
		t.Errorf("status %d\n%s", res.status, res.out)
	}
	if most > before+60 {
		t.Errorf("%d descriptors, %d before", most, before)
	}
}
