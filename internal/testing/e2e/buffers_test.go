// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/userstack"
)

// TestBuffers: if a program does not read, what the other one has written is in the buffers of the two sockets, as over
// TCP, and on the way between them is no more than docs/sockets.md says.
func TestBuffers(t *testing.T) {
	l := newLab(t)
	l.bare = true
	l.serve(l.A)
	l.serve(l.B)
	for _, address := range []string{l.A.Addr(), l.A.Addr6()} {
		client, server := l.programs(address)
		const much = 64 << 20 // makes TCP enlarge its buffers
		read := make(chan error, 1)
		go func() {
			_, err := io.CopyN(io.Discard, server, much)
			read <- err
		}()
		if _, err := client.Write(make([]byte, much)); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		var sent, unsent, waits, same int
		var last []int
		testkind.Eventually(t, "nothing goes any more", func() (any, bool) {
			sent += l.fill(client)
			unsent, waits = socktest.Ioctl(t, client, unix.SIOCOUTQ), socktest.Ioctl(t, server, unix.SIOCINQ)
			now := []int{sent, unsent, waits}
			if same++; !slices.Equal(now, last) {
				same = 0
			}
			last = now
			return now, same > 5
		})
		way := sent - unsent - waits
		t.Logf("%d bytes wait in the sending program's socket, %d on the way, %d in the other program's", unsent, way, waits)
		const element, sendBuffer, inner = userstack.DefaultBuf, userstack.DefaultBuf, 512<<10 + 192<<10
		if way > element+sendBuffer+inner {
			t.Errorf("%d bytes are on the way", way)
		}
		if out := l.smcr(l.A, "--backend", "user", "stats", "show"); fallbacksRE.FindStringSubmatch(out)[1] != "0" {
			t.Errorf("not all connections use SMC-R:\n%s", out)
		}
	}
}

// programs returns both ends of a connection from host B to an address of host A.
func (l *lab) programs(address string) (client, server *net.TCPConn) {
	l.t.Helper()
	ln := onHost(l, l.A, func() (net.Listener, error) { return net.Listen("tcp", net.JoinHostPort(address, "0")) })
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := ln.Accept()
		accepted <- c
	}()
	client = onHost(l, l.B, func() (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) }).(*net.TCPConn)
	c := <-accepted
	if c == nil {
		l.t.Fatal("nothing was accepted")
	}
	l.t.Cleanup(func() { c.Close() })
	return client, c.(*net.TCPConn)
}

// onHost makes something in the network namespace of a host that is closed with the test.
func onHost[T io.Closer](l *lab, h *netnstest.Host, open func() (T, error)) (x T) {
	l.t.Helper()
	if err := h.Do(func() (err error) {
		x, err = open()
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { x.Close() })
	return x
}

// fill writes what the socket takes at once.
func (l *lab) fill(c *net.TCPConn) (n int) {
	l.t.Helper()
	buf := make([]byte, 64<<10)
	socktest.Control(l.t, c, func(fd int) error {
		for {
			m, err := unix.Write(fd, buf)
			if errors.Is(err, unix.EAGAIN) {
				return nil
			}
			if err != nil {
				return err
			}
			n += m
		}
	})
	return n
}
