// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestProbeReset: looking for the first bytes leaves the error of a reset for the next use.
func TestProbeReset(t *testing.T) {
	testkind.System(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := peer.Write([]byte("xy")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(testkind.Patience))
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		t.Fatal(err)
	}
	if _, first := probeTCP(c.(TCPConn)); string(first) != "y" {
		t.Errorf("first bytes %q, want %q", first, "y")
	}
	if _, err := c.Read(b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(peer.(*net.TCPConn).SetLinger(0), peer.Close()); err != nil {
		t.Fatal(err)
	}
	// Until the reset has come, there is nothing to read.
	testkind.Eventually(t, "no reset", func() (any, bool) {
		if _, first := probeTCP(c.(TCPConn)); first != nil {
			t.Fatalf("first bytes %q", first)
		}
		return nil, resetHasCome(t, c.(syscall.Conn))
	})
	_, _ = probeTCP(c.(TCPConn))
	if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}

// resetHasCome reports whether a TCP connection is closed.
func resetHasCome(t *testing.T, c syscall.Conn) (closed bool) {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return closed
}
