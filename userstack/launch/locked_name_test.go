// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// lockedEnv makes TestLockedNameProcess run.
const lockedEnv = "SMCR_TEST_LOCKED_NAME"

// TestLockedName: a program that keeps the lock of a socket does not stop the launcher for the other
// programs, of whatever users, that it serves. The processes of this test would stop for ever,
// with their timers.
func TestLockedName(t *testing.T) {
	testkind.System(t)
	for _, kind := range []string{"connection", "listener"} {
		t.Run(kind, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestLockedNameProcess$", "-test.v")
			cmd.Env = append(os.Environ(), lockedEnv+"="+kind)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v (all goroutines stop if it was killed)\n%s", err, out)
			}
		})
	}
}

func TestLockedNameProcess(t *testing.T) {
	kind := os.Getenv(lockedEnv)
	if kind == "" {
		t.Skip("only for TestLockedName")
	}
	var fd int
	var want netip.AddrPort
	got := make(chan netip.AddrPort, 1)
	var release func()
	switch kind {
	case "connection":
		c, _ := socktest.TCPPair(t)
		f, err := c.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fd = int(f.Fd())
		want = localAddr(fd)
		release = socktest.Hold(t, fd)
	case "listener":
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(fd, 1); err != nil {
			t.Fatal(err)
		}
		want = localAddr(fd)
		// The kernel copies IP options while it has the lock.
		release = socktest.HoldBy(t, func(mem []byte) error {
			_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, uintptr(unsafe.Pointer(&mem[0])), 4, 0)
			return errOrNil(e)
		})
	}
	asked := make(chan struct{})
	go func() {
		close(asked)
		if kind == "listener" {
			to, _, err := placeTarget(fd)
			if err != nil {
				t.Error(err)
			}
			got <- to
			return
		}
		got <- localAddr(fd)
	}()
	<-asked
	time.Sleep(100 * time.Millisecond)
	runtime.GC() // waits for all goroutines
	select {
	case name := <-got:
		t.Errorf("the lock is not held: %v", name)
	default:
	}
	release()
	if name := <-got; name != want {
		t.Errorf("name %v, want %v", name, want)
	}
}

func errOrNil(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
