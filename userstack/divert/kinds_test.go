// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestKinds has connections of which TCP makes something of its own: each is carried, or TCP.
func TestKinds(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	listen := func(set func(fd int) error) net.Listener {
		t.Helper()
		var l net.Listener
		b.must(b.B.Do(func() (err error) {
			lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				if cerr := c.Control(func(fd uintptr) { err = set(int(fd)) }); cerr != nil {
					return cerr
				}
				return err
			}}
			l, err = lc.Listen(context.Background(), "tcp", net.JoinHostPort(b.B.Addr(), "0"))
			return err
		}))
		t.Cleanup(func() { l.Close() })
		return l
	}
	for _, test := range []struct {
		name   string
		server func(fd int) error
		taken  int64
	}{
		{name: "the server accepts with the first data", taken: 1, server: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5)
		}},
		{name: "several listening sockets", taken: 1, server: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}},
		{name: "small segments", taken: 1, server: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 100)
		}},
		{name: "a small receive buffer", taken: 1, server: func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 2048)
		}},
		{name: "no options", taken: 1, server: func(int) error {
			for _, name := range []string{"tcp_timestamps", "tcp_sack", "tcp_window_scaling"} {
				if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte("0"), 0); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "SYN cookies", taken: 0, server: func(int) error {
			return os.WriteFile("/proc/sys/net/ipv4/tcp_syncookies", []byte("2"), 0)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := b.taken[1].Load()
			l := listen(test.server)
			data := make([]byte, 1<<20)
			done := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					_, err = io.Copy(c, c)
					c.Close()
				}
				done <- err
			}()
			c := b.dial(l)
			go func() {
				_, _ = c.Write(data)
				_ = c.CloseWrite()
			}()
			got, err := io.ReadAll(c)
			if err != nil || len(got) != len(data) {
				t.Errorf("got %d of %d bytes, %v", len(got), len(data), err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if n := b.taken[1].Load() - before; n != test.taken {
				t.Errorf("%d connections were taken, want %d", n, test.taken)
			}
		})
	}
	b.gone()
}
