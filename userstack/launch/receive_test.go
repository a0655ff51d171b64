// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// probeRow makes connections one after the other and says of each whether it was one
// of a socketpair (s) or of TCP (t).
func probeRow(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	kinds, err := row(args[0], n)
	fmt.Println(kinds)
	return err
}

func row(address string, n int) (kinds string, err error) {
	sa, family, _ := sockaddrOf(address)
	for range n {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return kinds, err
		}
		if err := unix.Connect(fd, sa); err != nil {
			return kinds, err
		}
		kind := "t"
		if isPair(fd) {
			kind = "s"
		}
		kinds += kind
		if err := unix.Close(fd); err != nil {
			return kinds, err
		}
	}
	return kinds, nil
}

// TestAdapt: if SMC is not useful for connections to an address, they are TCP without a
// message to the stack. The stack is told later.
func TestAdapt(t *testing.T) {
	testkind.System(t)
	const n = 3 * shortRow
	for _, test := range []struct {
		name    string
		stack   *fakeStack
		noAdapt bool
		first   int // connections that the stack is asked about
	}{
		{"no peer", &fakeStack{noPeer: true}, false, noPeerRow},
		{"short", &fakeStack{}, false, shortRow},
		{"no peer, turned off", &fakeStack{noPeer: true}, true, n},
		{"short, turned off", &fakeStack{}, true, n},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := test.stack.fresh()
			f.t = t
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			res := launchedWith(t, t.Context(), Config{
				Argv: []string{exe, echoServer(t, "tcp4", "127.0.0.1:0", ""), strconv.Itoa(n)}, Env: append(os.Environ(), probeEnv+"=row"),
				Broker: f.client(), NoAdapt: test.noAdapt,
			}, "")
			kinds := strings.TrimSpace(res.out)
			asked := int(f.connects.Load())
			// The end of a connection is known a little after the program's next one.
			if res.status != 0 || len(kinds) != n || asked < test.first || !test.noAdapt && asked > test.first+shortRow {
				t.Errorf("status %d, asked for %d, want %d: %s", res.status, asked, test.first, kinds)
			}
			until(t, "the stack knows of each", func() bool { return asked+int(f.noted.Load()) == n })
			var counted uint64
			for _, c := range res.stats.TCP {
				counted += c
			}
			for _, c := range res.stats.ByMode {
				counted += c
			}
			if counted != n {
				t.Errorf("%+v, want %d", res.stats, n)
			}
		})
	}
}

// TestPlainAccept: of an accepted connection whose SYN has no option the stack is told,
// and not asked, if nothing but the option counts.
func TestPlainAccept(t *testing.T) {
	testkind.System(t)
	const conns = 5 // of testAccept
	for _, how := range []string{"block", "nonblock", "threads"} {
		for _, byOption := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/byOption=%v", how, byOption), func(t *testing.T) {
				f := &fakeStack{noPeer: true, byOption: byOption}
				testAccept(t, f, how, "127.0.0.1:0")
				until(t, "the stack knows of each", func() bool { return f.accepts.Load()+f.noted.Load() == conns })
				if asked := f.accepts.Load(); (asked == 0) != byOption {
					t.Errorf("asked for %d", asked)
				}
			})
		}
	}
	t.Run("the program's SYNs", func(t *testing.T) {
		f := &fakeStack{noPeer: true, byOption: true}
		testAccept(t, f, "saves", "127.0.0.1:0")
		if f.accepts.Load() != conns {
			t.Errorf("asked for %d", f.accepts.Load())
		}
	})
}

// probeAbsentQuick connects to an address that is known to be TCP, with the address in
// memory that is never there. Another program's connections must go on.
func probeAbsentQuick(args []string) error {
	kinds, err := row(args[0], noPeerRow+1)
	if err != nil {
		return err
	}
	if kinds != strings.Repeat("t", noPeerRow+1) {
		return fmt.Errorf("connections are %s", kinds)
	}
	mem, _, err := absentMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	for range stuckCalls {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		go func() {
			_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&mem[0])), unix.SizeofSockaddrInet4)
		}()
		time.Sleep(receiverTick / 2)
	}
	for range 3 {
		if err := other("blocking", args[0], "tcp"); err != nil {
			return err
		}
	}
	os.Exit(0) // the calls end with it
	return nil
}

// TestStuckReceiver: who receives the calls of all programs may get stuck in the memory
// of one.
func TestStuckReceiver(t *testing.T) {
	testkind.System(t)
	needAbsentMemory(t)
	probe(t, &fakeStack{noPeer: true}, "absentquick", echoServer(t, "tcp4", "127.0.0.1:0", ""))
}

// TestPidfds: a kept pidfd never stands for a thread that got the number later, and the
// number of those kept is bounded.
func TestPidfds(t *testing.T) {
	testkind.System(t)
	var x pidfds
	defer x.close()
	own := os.Getpid()
	if tgid, err := x.tgid(own); err != nil || tgid != own {
		t.Errorf("process %d, %v, want %d", tgid, err, own)
	}
	if o, err := x.owner(own); err != nil || o != (owner{os.Geteuid(), os.Getegid()}) {
		t.Errorf("owner %v, %v", o, err)
	}
	// The table has the number for another thread, which has ended.
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	x.drop(own)
	x.byTID[own] = &pidfdRef{fd: dead, users: 1}
	x.mu.Unlock()
	fd, err := x.getFD(own, 0)
	if err != nil {
		t.Fatalf("of a thread that has the number of a dead one: %v", err)
	}
	_ = unix.Close(fd)
	if _, err := x.getFD(own, 1<<20); err == nil {
		t.Error("a descriptor that is none")
	}
	for i := range 2 * maxPidfds {
		_ = x.with(os.Getpid(), func(int) error { return nil })
		x.mu.Lock()
		if n := len(x.byTID); n > maxPidfds {
			t.Fatalf("%d kept", n)
		}
		// Another number for the same pidfd, in the place of another thread.
		x.byTID[-i-1] = x.byTID[own]
		delete(x.byTID, own)
		x.mu.Unlock()
	}
	if _, err := x.tgid(1 << 30); err == nil {
		t.Error("a thread that is none")
	}
}
