// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// Of linux/userfaultfd.h.
const (
	uffdAPI            = 0xAA
	uffdioAPI          = 0xc018aa3f
	uffdioRegister     = 0xc020aa00
	uffdRegisterAbsent = 1
)

// absentMemory returns memory that is never provided: a thread that reads or writes it
// waits for a userfaultfd that no process serves.
func absentMemory(size int) (mem []byte, fd int, err error) {
	r, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		return nil, -1, fmt.Errorf("userfaultfd: %w", e)
	}
	api := [3]uint64{uffdAPI}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, r, uffdioAPI, uintptr(unsafe.Pointer(&api))); e != 0 {
		return nil, -1, fmt.Errorf("UFFDIO_API: %w", e)
	}
	mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, -1, err
	}
	reg := [4]uint64{uint64(uintptr(unsafe.Pointer(&mem[0]))), uint64(size), uffdRegisterAbsent}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, r, uffdioRegister, uintptr(unsafe.Pointer(&reg))); e != 0 {
		return nil, -1, fmt.Errorf("UFFDIO_REGISTER: %w", e)
	}
	return mem, int(r), nil
}

func needAbsentMemory(t *testing.T) {
	t.Helper()
	_, fd, err := absentMemory(os.Getpagesize())
	if err != nil {
		t.Skipf("no userfaultfd that the kernel's accesses wait for, which takes root or vm.unprivileged_userfaultfd=1: %v", err)
	}
	_ = unix.Close(fd)
}

// stuckCalls is how many calls a probe makes at once that wait for memory: more
// than a process may have looks.
const stuckCalls = 3 * procLooks

// stick makes calls from threads of their own, to fd and to fresh sockets, with
// addresses in mem.
func stick(fd int, mem []byte) {
	at := uintptr(unsafe.Pointer(&mem[0]))
	for i := range stuckCalls {
		go func() {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				fmt.Println(err)
				return
			}
			switch {
			case i%4 == 1 && fd >= 0:
				_, _, _ = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, at, 4, 0)
			case i%4 == 2 && fd >= 0:
				_, _, _ = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_DOMAIN, at, at+8, 0)
			case i%4 == 3 && fd >= 0:
				_, _, _ = unix.Syscall(unix.SYS_GETPEERNAME, uintptr(fd), at, at+64)
			default:
				_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(s), at, unix.SizeofSockaddrInet4)
			}
		}()
	}
}

// otherTime is how long another program may take for what takes milliseconds.
const otherTime = 20 * time.Second

// other runs a probe as another program of the same launch.
func other(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), otherTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), probeEnv+"="+name)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("another program, within %v: %w\n%s", otherTime, err, out)
	}
	return nil
}

// probeAbsent has calls wait for memory that is not there, while other programs
// of the launch make connections.
func probeAbsent(args []string) error {
	mem, _, err := absentMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	return stuckBesides(mem, args[0])
}

// probeDeaf is probeAbsent with the memory of a file of FUSE.
func probeDeaf(args []string) error {
	fd, err := unix.Open(args[1], unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil { // the size is not known before
		return err
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return stuckBesides(mem, args[0])
}

func stuckBesides(mem []byte, address string) error {
	sa, family, _ := sockaddrOf(address)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	stick(fd, mem)
	time.Sleep(2 * lookPatience) // so that they are in the calls
	for range 3 {
		if err := other("blocking", address, "smc"); err != nil {
			return err
		}
	}
	// The process itself makes connections, too.
	own, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(own, sa); err != nil {
		return fmt.Errorf("a connection of the same process: %w", err)
	}
	os.Exit(0) // the calls end with it
	return nil
}

// probeAbsentWait says which descriptor its userfaultfd is when its calls wait.
func probeAbsentWait([]string) error {
	mem, fd, err := absentMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	stick(-1, mem)
	time.Sleep(2 * lookPatience)
	fmt.Println(fd)
	select {}
}

// A program whose memory is never there stops no other program of the launch.
func TestAbsentMemory(t *testing.T) {
	testkind.System(t)
	needAbsentMemory(t)
	probe(t, &fakeStack{}, "absent", echoServer(t, "tcp4", "127.0.0.1:0", ""))
}

// The same with a file whose server does not answer.
func TestDeafMemory(t *testing.T) {
	testkind.System(t)
	d := newDeafFile(t, true)
	probe(t, &fakeStack{}, "deaf", echoServer(t, "tcp4", "127.0.0.1:0", ""), d.path)
	if d.reads.Load() == 0 {
		t.Error("nobody waited for the file")
	}
}

// The copy of a descriptor that is no socket is not even taken, as closing it
// may take as long as a file system likes.
func TestDeafClose(t *testing.T) {
	testkind.System(t)
	d := newDeafFile(t, false)
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { go unix.Close(fd) }) // until the file is gone
	x := newLooks(t.Context())
	for range 2 * procLooks {
		if got, err := x.socket(nil, os.Getpid(), fd, 1, lookPatience); !errors.Is(err, errMoved) {
			t.Fatalf("descriptor %d, %v", got, err)
		}
	}
	if n := d.flushes.Load(); n != 0 {
		t.Errorf("the file was closed %d times", n)
	}
}

// A program that replaces its descriptor before the launcher copies it uses only the
// share of its own process.
func TestUnexpectedClose(t *testing.T) {
	testkind.System(t)
	d := newDeafFile(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := newLooks(ctx)
	closeFile := func(tid int) error {
		type result struct{ err error }
		r, err := looked(x, nil, tid, lookPatience, func() (result, func()) {
			fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return result{err}, nil
			}
			if isSocket(fd) {
				return result{errors.New("a file is a socket")}, nil
			}
			return result{errNotSocket}, func() { _ = unix.Close(fd) }
		}, nil)
		return errors.Join(r.err, err)
	}
	for i := range procLooks {
		if err := closeFile(os.Getpid()); !errors.Is(err, errNotSocket) {
			t.Fatalf("look %d: %v", i, err)
		}
	}
	if err := closeFile(os.Getpid()); !errors.Is(err, errBusy) {
		t.Errorf("one more: %v, want %v", err, errBusy)
	}
	if err := closeFile(os.Getppid()); !errors.Is(err, errNotSocket) {
		t.Errorf("of another process: %v", err)
	}
}

// The launcher ends when the program has ended, also if a look still waits for memory
// that another process does not provide.
func TestAbsentMemoryEnd(t *testing.T) {
	testkind.System(t)
	needAbsentMemory(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stack := &fakeStack{t: t}
	p := start(t, Config{Argv: []string{exe}, Env: append(os.Environ(), probeEnv+"=absentwait", quietRuntime), Broker: stack.client()})
	num, err := strconv.Atoi(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	pid := p.pid(t)
	uffd, err := new(pidfds).getFD(pid, num)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(uffd) // then the looks end
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if res := p.wait(t); res.status != exitSignal+int(unix.SIGKILL) {
		t.Errorf("status %d\n%s", res.status, res.out)
	}
}
