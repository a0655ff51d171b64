// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestBuffers: after many bytes that were read at once, which makes TCP enlarge its buffers, nobody reads any more.
// Then inner has no more than it may have, of what the program sends and of what is sent to it.
func TestBuffers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, client, _, inner := newSplitBed(t)
	b.fill(client, inner)
	// The kernel measures memory, so it is less than that in bytes.
	n := socktest.Ioctl(t, inner, unix.SIOCINQ)
	t.Logf("inner has %d bytes of the program", n)
	if n > innerReceive || n < innerReceive/8 {
		t.Errorf("inner has %d bytes of the program, want about %d", n, innerReceive)
	}
	b.fill(inner, client)
	const packet = 64 << 10 // goes as a whole
	n = socktest.Ioctl(t, inner, unix.SIOCOUTQ)
	t.Logf("inner has %d bytes for the program", n)
	if n > unsent+packet || n < unsent/2 {
		t.Errorf("inner has %d bytes for the program, want about %d", n, unsent)
	}
}

// splitOff returns the other end of the program's connection, after the peer has agreed. It is nil if the test has failed.
func (b *bed) splitOff(f *Flow) *net.TCPConn {
	_, giveBack, ok := b.carry(f)
	if !ok {
		return nil
	}
	giveBack()
	fd, err := f.program().dup() // of its own: the stack knows nothing of it
	if err != nil {
		b.t.Error(err)
		f.Reset()
		return nil
	}
	file := os.NewFile(uintptr(fd), "inner")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		b.t.Error(err)
		f.Reset()
		return nil
	}
	return c.(*net.TCPConn)
}

// newSplitBed returns a bed with a connection whose client has a stack that carries it: inner is the other end of the program's
// connection. The server's stack declines.
func newSplitBed(t *testing.T) (b *bed, client *net.TCPConn, f *Flow, inner *net.TCPConn) {
	t.Helper()
	ends := make(chan *net.TCPConn, 1)
	flows := make(chan *Flow, 1)
	b = newBed(t, func(b *bed, f *Flow) {
		if f.Role == smc.Server {
			splice(b, f)
			return
		}
		flows <- f
		ends <- b.splitOff(f)
	})
	client, _ = b.connect(b.listen(b.B.Addr()))
	f, inner = <-flows, <-ends
	if inner == nil {
		t.FailNow()
	}
	t.Cleanup(func() { inner.Close() })
	return b, client, f, inner
}

// fill sends much that is read, and then until the window of the receiver is closed.
func (b *bed) fill(from, to *net.TCPConn) {
	b.t.Helper()
	const much = 64 << 20
	read := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, to, much)
		read <- err
	}()
	buf := make([]byte, 64<<10)
	for n := 0; n < much; n += len(buf) {
		if _, err := from.Write(buf); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := <-read; err != nil {
		b.t.Fatal(err)
	}
	testkind.Eventually(b.t, "the window is closed", func() (any, bool) {
		var info *unix.TCPInfo
		socktest.Control(b.t, from, func(fd int) (err error) {
			for err == nil {
				_, err = unix.Write(fd, buf)
			}
			if !errors.Is(err, unix.EAGAIN) {
				return err
			}
			info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			return err
		})
		return fmt.Sprintf("%+v", info), info.Unacked == 0 && info.Notsent_bytes > 0
	})
}
