// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
)

// urgentRounds is how many urgent bytes the program of TestUrgentIgnored gets.
const urgentRounds = 5

// TestUrgentIgnored: a program that takes no notice of urgent bytes never sees
// those before which it had read everything, as with TCP, whoever carries the
// bytes.
func TestUrgentIgnored(t *testing.T) {
	socktest.NeedOOB(t)
	for name, stack := range map[string]*fakeStack{
		"service": {}, "launcher": {noPeer: true, estDelay: 40 * ms, decide: ms}, "native": {notCandidate: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan error, 1)
			go func() { done <- sendUrgent(l) }()
			probe(t, stack, "urgent", l.Addr().String())
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// sendUrgent accepts a connection and sends data with an urgent byte behind it
// each time that the peer has read what was before.
func sendUrgent(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	for range urgentRounds {
		if _, err := io.WriteString(c, "data"); err != nil {
			return err
		}
		var serr error
		if err := rc.Control(func(fd uintptr) { serr = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) }); err != nil {
			return err
		}
		if serr != nil {
			return serr
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

// probeUrgent reads what sendUrgent sends.
func probeUrgent(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %v", err)
	}
	if err := pollOnce(fd); err != nil {
		return err
	}
	for i := range urgentRounds {
		var b [4]byte
		for n := 0; n < len(b); {
			time.Sleep(20 * ms) // the urgent byte is there most likely
			m, err := unix.Read(fd, b[n:])
			switch {
			case err == unix.EAGAIN || err == unix.EINTR:
			case m <= 0:
				return fmt.Errorf("round %d: read: %d, %v", i, m, err)
			default:
				n += m
			}
		}
		if string(b[:]) != "data" {
			return fmt.Errorf("round %d: read %q", i, b)
		}
		if i+1 == urgentRounds {
			// Nothing is left but the last urgent byte, which is not data.
			if n, err := unix.Read(fd, b[:]); n > 0 {
				return fmt.Errorf("read %q at the end, %v", b[:n], err)
			}
		}
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			return fmt.Errorf("round %d: write: %w", i, err)
		}
	}
	return nil
}
