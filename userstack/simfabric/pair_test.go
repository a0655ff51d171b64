// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/engine"
)

// twin is a socketpair of a world and one of the kernel. Each step does the same to both.
type twin struct {
	t    *testing.T
	sock *engine.Socket
	prog *Program
	fds  [2]int // the kernel's pair: the end of the loop and that of the program; -1 when closed
	oob  bool   // the kernel supports urgent bytes on unix sockets
}

func newTwin(t *testing.T, l *Loop) *twin {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &twin{t: t, fds: fds}
	for _, fd := range fds {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1); err != nil {
			t.Fatal(err)
		}
	}
	x.sock, x.prog = l.Pair(64 << 10)
	return x
}

func (x *twin) close() {
	for _, fd := range x.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	_ = x.sock.Close()
	_ = x.prog.Close()
}

func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	return 0
}

// recvOnce reads into b, in two pieces.
func (x *twin) recvOnce(b []byte) (int, syscall.Errno) {
	n, errno := x.sock.Recv(nil, b[:(len(b)+1)/2], b[(len(b)+1)/2:])
	return n, errno
}

// recv reads at the loop's end, at most n bytes and not beyond an urgent one. It calls
// the model until the result is complete, because the model may return less.
func (x *twin) recv(n int) {
	buf, want := make([]byte, n), make([]byte, n)
	m, errno := x.recvOnce(buf)
	for m > 0 && m < n {
		_, mark, _ := x.sock.Pending()
		if mark || x.prog.Unread() == 0 {
			break
		}
		k, _ := x.recvOnce(buf[m:])
		m += k
	}
	k, err := unix.Read(x.fds[0], want)
	if e := errnoOf(err); max(k, 0) != m || e != errno || !bytes.Equal(buf[:m], want[:m]) {
		x.t.Fatalf("recv of %d bytes: %d, %v; the kernel: %d, %v", n, m, errno, k, err)
	}
}

// compare compares the result of poll at the loop's end.
func (x *twin) compare(what string) {
	p := []unix.PollFd{{Fd: int32(x.fds[0]), Events: unix.POLLIN | unix.POLLPRI | unix.POLLRDHUP}}
	if _, err := unix.Poll(p, 0); err != nil {
		x.t.Fatal(err)
	}
	e := (*loopEnd)(x.prog.p)
	e.w.mu.Lock()
	got := e.events() &^ uint32(unix.EPOLLOUT)
	e.w.mu.Unlock()
	if want := uint32(uint16(p[0].Revents)); got != want {
		x.t.Fatalf("%s: events %#x, the kernel: %#x", what, got, want)
	}
	_, mark, plain := x.sock.Pending()
	if want := p[0].Revents == unix.POLLIN; plain != want {
		x.t.Fatalf("%s: plain data: %v, the kernel: %#x", what, plain, p[0].Revents)
	}
	at, err := unix.IoctlGetInt(x.fds[0], unix.SIOCATMARK)
	if err == nil && mark != (at != 0 && p[0].Revents&unix.POLLPRI != 0) {
		x.t.Fatalf("%s: at the mark: %v, the kernel: %d", what, mark, at)
	}
	up, failed := x.sock.HungUp()
	if up != (p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0) || failed != (p[0].Revents&unix.POLLERR != 0) {
		x.t.Fatalf("%s: hung up: %v, failed: %v, the kernel: %#x", what, up, failed, p[0].Revents)
	}
	if n, errno := x.sock.Peek(); !failed {
		k, _, kerr := unix.Recvfrom(x.fds[0], make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if n != max(k, 0) || errno != errnoOf(kerr) {
			x.t.Fatalf("%s: peek: %d, %v, the kernel: %d, %v", what, n, errno, k, kerr)
		}
	}
}

func (x *twin) same(what string, err error, kernel error) {
	if errnoOf(err) != errnoOf(kernel) {
		x.t.Fatalf("%s: %v, the kernel: %v", what, err, kernel)
	}
}

// step does one random thing that programs and relays do.
func (x *twin) step(r *rand.Rand) (what string) {
	data := make([]byte, 1+r.IntN(20))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	switch k := r.IntN(24); {
	case k < 8 && x.fds[1] >= 0:
		what = fmt.Sprintf("write %d", len(data))
		_, err := x.prog.Write(data)
		kerr := unix.Sendto(x.fds[1], data, unix.MSG_NOSIGNAL, nil)
		x.same(what, err, kerr)
	case k < 10 && x.fds[1] >= 0 && x.oob:
		what = fmt.Sprintf("write %d, the last urgent", len(data))
		_, err := x.prog.WriteUrgent(data)
		kerr := unix.Sendto(x.fds[1], data, unix.MSG_OOB|unix.MSG_NOSIGNAL, nil)
		x.same(what, err, kerr)
	case k < 16:
		n := 1 + r.IntN(40)
		if _, mark, _ := x.sock.Pending(); mark {
			n = 1 // all readers do this
		}
		what = fmt.Sprintf("recv %d", n)
		x.recv(n)
	case k < 18:
		what = "send"
		_, errno := x.sock.Send(nil, data[:1], nil)
		_, kerr := unix.SendmsgN(x.fds[0], data[:1], nil, nil, unix.MSG_NOSIGNAL)
		if errnoOf(kerr) != errno {
			x.t.Fatalf("send: %v, the kernel: %v", errno, kerr)
		}
	case k < 20 && x.fds[1] >= 0:
		what = "read"
		got, want := make([]byte, 7), make([]byte, 7)
		n, err := x.prog.Read(got)
		kn, kerr := unix.Read(x.fds[1], want)
		x.same(what, err, kerr)
		if n != max(kn, 0) || !bytes.Equal(got[:n], want[:n]) {
			x.t.Fatalf("read: %d, %v, the kernel: %d, %v", n, err, kn, kerr)
		}
	case k == 20 && x.fds[1] >= 0:
		what = "shutdown of the program"
		_ = x.prog.CloseWrite()
		_ = unix.Shutdown(x.fds[1], unix.SHUT_WR)
	case k == 21:
		what = "shutdown of the loop's end"
		_ = x.sock.CloseWrite()
		_ = unix.Shutdown(x.fds[0], unix.SHUT_WR)
	case k == 22 && x.fds[1] >= 0 && r.IntN(3) == 0:
		what = "close"
		_ = x.prog.Close()
		_ = unix.Close(x.fds[1])
		x.fds[1] = -1
	}
	return what
}

// TestPairAsKernel: a socketpair of a world behaves like one of the kernel.
func TestPairAsKernel(t *testing.T) {
	testkind.System(t)
	oob := false
	if fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		oob = unix.Sendto(fds[0], []byte("x"), unix.MSG_OOB, nil) == nil
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
	}
	if !oob {
		t.Log("unix sockets have no urgent bytes here (CONFIG_AF_UNIX_OOB, Linux 5.15)")
	}
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			w := New(Config{Seed: seed})
			defer w.Close()
			l := w.Host("A", NetDev{Name: "eth0"}).NewLoop(0)
			defer l.Close()
			x := newTwin(t, l)
			x.oob = oob
			defer x.close()
			r := rand.New(rand.NewPCG(seed, 1))
			var story []string
			defer func() {
				if t.Failed() {
					t.Logf("seed %d: %q", seed, story)
				}
			}()
			for range 60 {
				what := x.step(r)
				story = append(story, what)
				x.compare(what)
			}
		})
	}
}

// TestPairReset: if the loop's end is closed with unread data, the program reads what was
// sent and then gets ECONNRESET.
func TestPairReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Config{})
		defer w.Close()
		l := w.Host("A", NetDev{Name: "eth0"}).NewLoop(0)
		defer l.Close()
		sock, prog := l.Pair(100)
		if n, errno := sock.Send(nil, []byte("abc"), nil); n == 0 || errno != 0 {
			t.Fatalf("%d, %v", n, errno)
		}
		prog.Reset()
		if err := sock.Close(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if n, err := prog.Read(b); n == 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if _, err := prog.Read(b); err != syscall.ECONNRESET {
			t.Errorf("then %v", err)
		}
	})
}
