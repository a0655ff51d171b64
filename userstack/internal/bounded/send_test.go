// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// seqpackets returns both ends of a pair.
func seqpackets(t *testing.T) [2]*net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends
}

// TestSend: a limit that is over before the system call is made, as in a process that gets no
// processor time, counts only if there is no room. Then nothing of the message is sent.
func TestSend(t *testing.T) {
	testkind.System(t)
	ends := seqpackets(t)
	const over = -time.Second
	b := make([]byte, 1000)
	n := 0
	var err error
	for ; err == nil && n < 1<<20; n++ {
		err = Send(ends[0], b, nil, over)
	}
	if n--; n < 10 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d messages, then %v", n, err)
	}
	buf := make([]byte, 2000)
	for i := range n {
		if m, err := ends[1].Read(buf); err != nil || m != len(b) {
			t.Fatalf("message %d: %d bytes, %v", i, m, err)
		}
	}
	if err := Send(ends[0], b[:1], nil, over); err != nil {
		t.Errorf("after the peer has read: %v", err)
	}
	if m, err := ends[1].Read(buf); err != nil || m != 1 {
		t.Errorf("%d bytes, %v", m, err)
	}
	_ = ends[1].Close()
	if err := Send(ends[0], b, nil, time.Minute); !errors.Is(err, unix.EPIPE) {
		t.Errorf("without a peer: %v", err)
	}
}

// TestSendWaits: Send waits for room.
func TestSendWaits(t *testing.T) {
	testkind.System(t)
	ends := seqpackets(t)
	b := make([]byte, 1000)
	n := 0
	for Send(ends[0], b, nil, -1) == nil {
		n++
	}
	sent := make(chan error)
	go func() { sent <- Send(ends[0], b, nil, time.Minute) }()
	buf := make([]byte, 2000)
	for range n + 1 {
		if _, err := ends[1].Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
