// SPDX-License-Identifier: Apache-2.0

package place

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// stackEnv makes TestHolderProcess a stack: the directory of newView, and words that say what it
// does.
const stackEnv = "SMCR_TEST_HOLDER"

// TestHolderProcess is the process of a stack, for other tests. Descriptor 3 is a TCP socket, and 4
// the lock of another process.
func TestHolderProcess(t *testing.T) {
	testkind.System(t)
	root, does, ok := strings.Cut(os.Getenv(stackEnv), ":")
	if !ok {
		t.Skip("only for TestDead")
	}
	if strings.Contains(does, "proc") {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
	v := newView(t)
	v.root = root
	claim := v.take
	if strings.Contains(does, "inherit") {
		claim = func() (*Claim, error) { return v.inherit(os.NewFile(4, "lock")) }
	}
	c, err := claim()
	if err == nil {
		_, err = c.Listen(Commands)
	}
	if err == nil && strings.Contains(does, "publish") {
		err = c.Publish()
	}
	if _, perr := c.Part(); err == nil {
		err = perr
	}
	if err == nil && strings.Contains(does, "leave") {
		_, err = c.Leave(time.Time{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(does, "many") {
		for range 200 {
			go func() {
				runtime.LockOSThread()
				_, _ = unix.Poll(nil, -1)
			}()
		}
		testkind.Eventually(t, "there are many threads", func() (any, bool) {
			names, err := os.ReadDir("/proc/self/task")
			return err, len(names) > 200
		})
	}
	if strings.Contains(does, "stuck") {
		go func() { _, _ = unix.Getpeername(3) }()
		testkind.Eventually(t, "a thread waits in the kernel", func() (any, bool) { return nil, waits() })
	}
	fmt.Println("a stack")
	for { // not select {}: without cgo, the runtime ends a program that waits for nothing
		_, _ = unix.Poll(nil, -1)
		runtime.KeepAlive(c) // and its locks
	}
}

// waits reports whether a thread of this process waits in a system call that no signal ends.
func waits() bool {
	names, _ := filepath.Glob("/proc/self/task/*/stat")
	return slices.ContainsFunc(names, func(name string) bool {
		b, _ := os.ReadFile(name)
		_, state, _ := strings.Cut(string(b), ") ")
		return strings.HasPrefix(state, "D ")
	})
}

// process starts the process of a stack whose socket is f.
func process(t *testing.T, v *view, does string, attr *syscall.SysProcAttr, files ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHolderProcess$", "-test.v")
	// It is killed, and does not remove its directories.
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), stackEnv+"="+v.root+":"+does)
	cmd.ExtraFiles, cmd.SysProcAttr = files, attr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var said []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "a stack" {
			return cmd
		}
		said = append(said, lines.Text())
	}
	t.Log(said)
	t.Fatal("the process has not become a stack")
	return nil
}

// locked returns a socket whose lock is held until release.
func locked(t *testing.T) (f *os.File, release func()) {
	t.Helper()
	c, _ := socktest.TCPPair(t)
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, socktest.Hold(t, int(f.Fd()))
}

// TestDead: the lock of a process that was killed and cannot end is free, and no other lock is.
func TestDead(t *testing.T) {
	signal := func(sig unix.Signal) func(*testing.T, *exec.Cmd) {
		return func(t *testing.T, cmd *exec.Cmd) {
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	kill := signal(unix.SIGKILL)
	newPID := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	for _, test := range []struct {
		name, does string
		attr       *syscall.SysProcAttr
		do         func(*testing.T, *exec.Cmd)
		free       bool
	}{
		{"killed while a thread is stuck", "stuck", nil, kill, true},
		{"killed while a thread is stuck, and many end", "stuck many", nil, kill, true},
		{"stuck", "stuck", nil, func(*testing.T, *exec.Cmd) {}, false},
		{"stopped", "", nil, signal(unix.SIGSTOP), false},
		{"stopped and stuck", "stuck", nil, signal(unix.SIGSTOP), false},
		{"stopped and killed while stuck", "stuck", nil, func(t *testing.T, cmd *exec.Cmd) {
			signal(unix.SIGSTOP)(t, cmd)
			kill(t, cmd)
		}, true},
		{"a zombie", "", nil, func(t *testing.T, cmd *exec.Cmd) {
			kill(t, cmd)
			var info unix.Siginfo
			if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"of another PID namespace", "", newPID, func(*testing.T, *exec.Cmd) {}, false},
		{"of another PID namespace with its /proc", "proc", newPID, func(*testing.T, *exec.Cmd) {}, false},
		{"dead in another PID namespace", "stuck proc", newPID, kill, false},
		{"of an earlier release", "stuck", nil, func(t *testing.T, cmd *exec.Cmd) {
			name := strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], stackEnv+"=")
			root, _, _ := strings.Cut(name, ":")
			v := newView(t)
			if err := os.WriteFile(filepath.Join(v.dir(root), lockName), []byte("7\n"), 0); err != nil {
				t.Fatal(err)
			}
			kill(t, cmd)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.attr != nil {
				needRoot(t)
			}
			f, release := locked(t)
			defer release() // or the process does not end
			v := newView(t)
			cmd := process(t, v, test.does, test.attr, f)
			test.do(t, cmd)
			if !test.free {
				if _, err := v.take(); !errors.Is(err, ErrTaken) {
					t.Errorf("the place: %v, want ErrTaken", err)
				}
				return
			}
			// Several processes find the dead one at a time.
			var wg sync.WaitGroup
			var mu sync.Mutex
			var got []*Claim
			for range 4 {
				wg.Go(func() {
					c, err := stack(v)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						got = append(got, c)
					} else if !errors.Is(err, ErrTaken) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(got) != 1 {
				t.Fatalf("%d stacks have the place, want 1", len(got))
			}
			c := got[0]
			defer c.Close()
			if n := part(t, c); n != 0 {
				t.Errorf("part %d, want that of the dead stack", n)
			}
			// The end of the dead one changes nothing.
			release()
			if _, err := cmd.Process.Wait(); err != nil {
				t.Error(err)
			}
			if err := v.reach(); err != nil {
				t.Error(err)
			}
			if _, err := v.take(); !errors.Is(err, ErrTaken) {
				t.Errorf("beside the next one: %v", err)
			}
		})
	}
}

// TestDeadHeir: a lock that two processes have, while one takes over, is free when both are dead.
func TestDeadHeir(t *testing.T) {
	for _, published := range []bool{false, true} {
		t.Run("published "+strconv.FormatBool(published), func(t *testing.T) {
			f, release := locked(t)
			defer release() // or the process does not end
			v := newView(t)
			c := newStack(t, v)
			lock, err := c.Lock()
			if err != nil {
				t.Fatal(err)
			}
			does := "stuck inherit"
			if published {
				does += " publish"
			}
			cmd := process(t, v, does, nil, f, lock)
			if err := lock.Close(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if published {
				part(t, c)
				l, err := c.Leave(time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			} else if _, err := v.take(); !errors.Is(err, ErrTaken) {
				t.Errorf("beside the living stack: %v, want ErrTaken", err)
			} else {
				c.die(t)
				return // this process lives, so nobody can know that its stack does not
			}
			if next := newStack(t, v); !slices.Equal(next.Dead(), []int{cmd.Process.Pid}) {
				t.Errorf("the dead processes are %v, want %d", next.Dead(), cmd.Process.Pid)
			}
		})
	}
}

// TestHolders: only a file that was written as a whole names processes.
func TestHolders(t *testing.T) {
	testkind.System(t)
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead, later := me, me
	dead.pid, later.start = uint64(gone.Process.Pid), me.start+1
	other := dead
	other.timens++
	line := func(h holder) string { return fmt.Sprintln(h.pid, h.start, h.pidns, h.timens) }
	const ino = "4026531840                              \n"
	for _, test := range []struct {
		name, text string
		dead       bool
	}{
		{"nothing", "", false},
		{"an earlier release", "4026531840\n", false},
		{"this process", ino + line(me), false},
		{"a process that is gone", ino + line(dead), true},
		{"another one has the number", ino + line(later), true},
		{"one of two is gone", ino + line(dead) + line(me), false},
		{"both are gone", ino + line(dead) + line(later), true},
		{"a time that means nothing here", ino + line(other), false},
		{"no line end", ino + strings.TrimSpace(line(dead)), false},
		{"half a line", ino + line(dead) + "12 \n", false},
	} {
		name := filepath.Join(t.TempDir(), lockName)
		if err := os.WriteFile(name, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := holdersDead(f); got != test.dead {
			t.Errorf("%s: abandoned %v, want %v", test.name, got, test.dead)
		}
		_ = f.Close()
	}
	// Releases that know only the number of the namespace read 32 bytes.
	v := newView(t)
	c := newStack(t, v)
	b, err := fs.ReadFile(os.DirFS(c.dir), lockName)
	if err != nil || len(b) < 32 || strings.TrimSpace(string(b[:32])) != "7" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestMakePart: a process that takes over gets a part, also if those that have handed over keep all:
// the one that was started first ends, whether it answers or not.
func TestMakePart(t *testing.T) {
	testkind.System(t)
	for _, stopped := range []bool{false, true} {
		t.Run("stopped "+strconv.FormatBool(stopped), func(t *testing.T) {
			v := newView(t)
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			old := process(t, v, "leave", nil, f)
			// The times of the kernel are in hundredths of a second.
			begun, err := readThread(fmt.Sprint("/proc/", old.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			testkind.Eventually(t, "the next hundredth", func() (any, bool) {
				var now unix.Timespec
				err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
				return now, err == nil && uint64(now.Nano()/1e7) > begun.start
			})
			later := process(t, v, "leave", nil, f)
			c := newStack(t, v)
			for n := 2; n < Parts; n++ {
				p, err := takePart(c.dir, n)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
			}
			if _, err := c.Part(); !errors.Is(err, ErrParts) {
				t.Fatalf("%v, want ErrParts", err)
			}
			if stopped {
				if err := old.Process.Signal(unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			inOrder := endTime
			if stopped {
				inOrder = time.Second // it does not end
			}
			var ended []int
			n, err := c.makePart(t.Context(), func(pid int) { ended = append(ended, pid) }, inOrder)
			if n != 0 || err != nil || !slices.Equal(ended, []int{old.Process.Pid}) {
				t.Errorf("part %d, %v; ended %v, want %d", n, err, ended, old.Process.Pid)
			}
			if err := later.Process.Signal(unix.Signal(0)); err != nil {
				t.Errorf("the later one: %v", err)
			}
			if got := v.draining(); len(got) != 1 || got[0].PID != later.Process.Pid {
				t.Errorf("left: %+v", got)
			}
		})
	}
	t.Run("nobody has handed over", func(t *testing.T) {
		v := newView(t)
		c := newStack(t, v)
		for n := range Parts {
			p, err := takePart(c.dir, n)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
		}
		if _, err := c.MakePart(t.Context(), func(pid int) { t.Errorf("process %d ends", pid) }); !errors.Is(err, ErrParts) {
			t.Errorf("%v, want ErrParts", err)
		}
	})
}
