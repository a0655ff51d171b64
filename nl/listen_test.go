// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/quota"
)

// listeningFile returns a listening socket.
func listeningFile(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// openFiles returns how many descriptors this process has: that of the server, and of the client.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestListen hands listening sockets over: more than there is room for in a datagram, by root and by another user. The server has
// none of them left.
func TestListen(t *testing.T) {
	testkind.System(t)
	fake := nltest.NewFake(nltest.SampleState())
	address := serve(t, fake, nl.ServerConfig{})
	f := listeningFile(t)
	var fds []int
	for range 40 {
		fds = append(fds, int(f.Fd()))
	}
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := openFiles(t)
	for range 3 {
		if err := c.Listen(t.Context(), nl.Peer{}, fds); err != nil {
			t.Fatal(err)
		}
	}
	if n := fake.Listening(); n != 3*len(fds) {
		t.Errorf("%d sockets, want %d", n, 3*len(fds))
	}
	if err := c.Listen(t.Context(), nl.Peer{}, []int{int(os.Stdin.Fd())}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no listening socket: %v", err)
	}
	// A request after it has no descriptors of it.
	if _, err := c.Attachments(t.Context()); err != nil {
		t.Error(err)
	}
	testkind.Eventually(t, "the server has closed what came", func() (any, bool) {
		n := openFiles(t)
		return n, n <= before
	})
}

// TestListenQuota: descriptors that a client sends count to its user.
func TestListenQuota(t *testing.T) {
	testkind.System(t)
	fake := nltest.NewFake(nltest.SampleState())
	address := serve(t, fake, nl.ServerConfig{Quota: quota.New(quota.Limits{Total: 10000, User: 3})})
	fd := int(listeningFile(t).Fd())
	c := dialAs(t, nobody, address)
	for range 3 { // what came is given back
		if err := c.Listen(t.Context(), nl.Peer{}, []int{fd, fd}); err != nil {
			t.Error(err)
		}
	}
	if err := c.Listen(t.Context(), nl.Peer{}, []int{fd, fd, fd}); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("too many: %v", err)
	}
	if n := fake.Listening(); n != 6 {
		t.Errorf("%d sockets, want 6", n)
	}
}

// TestListenForged has what no client sends: more descriptors than there is room for, and some with another request.
func TestListenForged(t *testing.T) {
	testkind.System(t)
	fake := nltest.NewFake(nltest.SampleState())
	address := serve(t, fake, nl.ServerConfig{})
	fd := int(listeningFile(t).Fd())
	before := openFiles(t)
	send := func(fds ...int) (*net.UnixConn, error) {
		t.Helper()
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: address, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.WriteMsgUnix(connections(), syscall.UnixRights(fds...), nil)
		return c, err
	}
	c, err := send(fd, fd)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 64<<10)); n == 0 || err != nil {
		t.Errorf("a table with descriptors: %d bytes, %v", n, err)
	}
	c.Close()
	if c, err = send(make([]int, 17)...); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 64<<10)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("too many descriptors: %d bytes, %v", n, err)
	}
	c.Close()
	testkind.Eventually(t, "the server has closed what came", func() (any, bool) {
		n := openFiles(t)
		return n, n <= before
	})
	if n := fake.Listening(); n != 0 {
		t.Errorf("%d sockets are handed over", n)
	}
}

// TestListenDeaf: a file that cannot be closed, as one of FUSE, keeps the place of its client, and not the server.
func TestListenDeaf(t *testing.T) {
	testkind.System(t)
	let := make(chan struct{})
	defer close(let)
	stuck := make(chan struct{}, 9)
	address := "@" + strings.ReplaceAll(t.Name(), "/", "-") + time.Now().String()
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	s := nl.NewServer(nltest.NewFake(nltest.SampleState()), nl.ServerConfig{Close: func(c io.Closer) error {
		if _, ok := c.(net.Conn); !ok && c != io.Closer(l) {
			stuck <- struct{}{}
			<-let
		}
		return c.Close()
	}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Listen(t.Context(), nl.Peer{}, []int{int(listeningFile(t).Fd())}); err != nil {
		t.Error(err)
	}
	<-stuck
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
