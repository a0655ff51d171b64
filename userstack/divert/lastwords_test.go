// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestLastWords: a program reads what was written before a reset, more than the first congestion window of ten packets, and
// then the reset. It has room for all of it, so TCP would have sent it.
func TestLastWords(t *testing.T) {
	testkind.System(t)
	const words = 40 << 10
	connected := make(chan struct{})
	carried := func(reset func(*Flow)) func(*bed, *Flow) {
		return func(b *bed, f *Flow) {
			if f.Role == smc.Server {
				splice(b, f)
				return
			}
			inner, err := splitOff(f)
			if err != nil {
				b.t.Error(err)
				f.Reset()
				return
			}
			<-connected // otherwise connect fails
			if _, err := inner.Write(make([]byte, words)); err != nil {
				b.t.Error(err)
			}
			inner.Close()
			reset(f)
		}
	}
	for _, test := range []struct {
		name   string
		handle func(*bed, *Flow)
		sends  bool // the program on the server does
	}{
		{"the program, then the rest", carried(func(f *Flow) { f.ResetProgram(); f.Finish(true) }), false},
		{"both at once", carried(func(f *Flow) { f.Finish(true) }), false},
		{"declined", splice, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t, test.handle)
			l := b.listen(b.B.Addr())
			for range 10 {
				client, server := b.connect(l)
				if test.sends {
					if _, err := server.Write(make([]byte, words)); err != nil {
						t.Fatal(err)
					}
					// What the own window of the sender has not let go is lost over TCP, too.
					testkind.Eventually(t, "all is sent", func() (any, bool) {
						n := ioctl(t, server, unix.SIOCOUTQ)
						return n, n == 0
					})
					_ = server.SetLinger(0)
					server.Close()
				} else {
					connected <- struct{}{}
				}
				got, err := io.ReadAll(client)
				if len(got) != words || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("read %d bytes, then %v; want %d, then ECONNRESET", len(got), err, words)
				}
			}
		})
	}
}

// TestLastWordsUnread: a program that reads nothing is reset all the same. What it has no room for is lost, as over TCP.
func TestLastWordsUnread(t *testing.T) {
	testkind.System(t)
	ends := make(chan *net.TCPConn, 1)
	flows := make(chan *Flow, 1)
	b := newBed(t, func(b *bed, f *Flow) {
		if f.Role == smc.Server {
			splice(b, f)
			return
		}
		inner, err := splitOff(f)
		if err != nil {
			b.t.Error(err)
			f.Reset()
		}
		flows <- f
		ends <- inner
	})
	client, _ := b.connect(b.listen(b.B.Addr()))
	f, inner := <-flows, <-ends
	if inner == nil {
		t.FailNow()
	}
	b.fill(inner, client)
	testkind.Eventually(t, "a reset does not wait for a program that has no room", func() (any, bool) {
		return nil, !f.program().sending()
	})
	inner.Close()
	f.ResetProgram()
	f.Finish(true)
	got, err := io.Copy(io.Discard, client)
	if got == 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, then %v; want some, then ECONNRESET", got, err)
	}
}
