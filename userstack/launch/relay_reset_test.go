// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestLauncherReset: if the peer resets the connection, the program sees a reset, and if
// the program closes with unread data, the peer sees a reset. This is so if the service
// carries the bytes, and if the launcher does.
func TestLauncherReset(t *testing.T) {
	testkind.System(t)
	for name, stack := range map[string]*fakeStack{
		"service": {}, "launcher": {noPeer: true, estDelay: 40 * ms, decide: ms}, "native": {notCandidate: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan error, 1)
			go func() { done <- errors.Join(resetOne(l), wantReset(l)) }()
			probe(t, stack, "peerreset", l.Addr().String())
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// resetOne resets a connection when the program has read what was sent.
func resetOne(l *net.TCPListener) error {
	c, err := l.AcceptTCP()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), c.SetLinger(0)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hi"); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// wantReset wants a connection to end by a reset after the program's last words.
func wantReset(l *net.TCPListener) error {
	c, err := l.AcceptTCP()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hi"); err != nil {
		return err
	}
	if got, err := io.ReadAll(c); string(got) != "x" || !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("the peer got %q, %w; want a reset", got, err)
	}
	return nil
}

// probePeerReset reads what resetOne sends, and does not read what wantReset does.
func probePeerReset(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	connect := func() (int, error) {
		fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
			return fd, fmt.Errorf("connect: %v", err)
		}
		if err := pollOnce(fd); err != nil {
			return fd, err
		}
		time.Sleep(50 * ms) // until the service or the launcher carries it
		return fd, wait(fd, unix.POLLIN, patience)
	}
	fd, err := connect()
	if err != nil {
		return err
	}
	buf := make([]byte, 10)
	if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "hi" {
		return fmt.Errorf("read %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := wait(fd, unix.POLLIN, patience); err != nil {
		return err
	}
	if n, err := unix.Read(fd, buf); err != unix.ECONNRESET {
		return fmt.Errorf("after the reset: read %d, %v", n, err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != unix.EPIPE {
		return fmt.Errorf("after the reset: write: %v", err)
	}
	_ = unix.Close(fd)
	if fd, err = connect(); err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return unix.Close(fd)
}
