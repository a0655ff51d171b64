// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/userstack/broker"
	"smcr/userstack/relay"
)

// markSocket is a program's end whose urgent bytes stay in the stream. It takes
// the place of p's descriptor, until end.
func markSocket(t *testing.T, p *program) (s *relay.Socket, end func()) {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := fileConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(6 * testTime)); err != nil {
		t.Fatal(err)
	}
	if s, err = relay.NewSocket(c.(relay.Conn)); err != nil {
		t.Fatal(err)
	}
	return s, func() { _ = c.Close(); p.close() }
}

// dropsUrgent plays the launcher's part for a program that is sent urgent bytes at
// descriptor fd.
func dropsUrgent(cc *broker.ClientConn, fd int) {
	for ev := range cc.Events() {
		if ev.Kind == broker.EventDropUrgent {
			relay.DropUrgent(fd)
			_ = cc.UrgentDropped()
		}
	}
}

// TestUrgentRaces has a program write plain and urgent bytes in all orders while
// the engine reads, which looks for urgent bytes only where epoll tells of them.
// Each byte arrives once, in its place. An urgent one is told as such unless
// another one followed before it was read, which it does not if the writer is
// calm; and no other byte is.
func TestUrgentRaces(t *testing.T) {
	socktest.NeedOOB(t)
	for name, calm := range map[string]bool{"calm": true, "wild": false} {
		t.Run(name, func(t *testing.T) {
			c := newCarried(t, os.Geteuid())
			from, endFrom := markSocket(t, c.cprog)
			to, endTo := markSocket(t, c.sprog)
			answered := make(chan struct{})
			fd := c.sprog.fd
			go func() {
				defer close(answered)
				dropsUrgent(c.sc, fd)
			}()
			rng := rand.New(rand.NewPCG(11, uint64(len(name))))
			var want []byte
			marks := map[int]bool{}
			seen := make(chan struct{}, 1)
			wrote := make(chan error, 1)
			go func() {
				var err error
				put := func(urgent bool) {
					b := make([]byte, 1+rng.IntN(8))
					if rng.IntN(20) == 0 {
						b = make([]byte, 1+rng.IntN(100<<10))
					}
					for i := range b {
						b[i] = byte(rng.Uint32())
					}
					want = append(want, b...)
					if err != nil {
						return
					}
					if urgent {
						marks[len(want)-1] = true
						_, err = from.WriteUrgent(b)
					} else {
						_, err = from.Write(b)
					}
					switch rng.IntN(4) {
					case 0:
						runtime.Gosched()
					case 1:
						// Real time: the engine reads at any moment between writes.
						time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
					}
				}
				for i := 0; i < 400 && err == nil; i++ {
					for range rng.IntN(4) {
						put(false)
					}
					put(true)
					for range rng.IntN(3) {
						put(false)
					}
					if calm {
						select {
						case <-seen:
						case <-time.After(testTime):
							err = os.ErrDeadlineExceeded
						}
					}
				}
				c.cprog.shutdown()
				wrote <- err
			}()
			var got []byte
			var urgent []int
			buf := make([]byte, 64<<10)
			for {
				n, u, err := to.ReadMark(buf)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, buf[:n]...); u {
					urgent = append(urgent, len(got)-1)
					if calm {
						seen <- struct{}{}
					}
				}
			}
			if err := <-wrote; err != nil {
				t.Errorf("an urgent byte was not told as such: %v", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d arrived, or others", len(got), len(want))
			}
			for _, at := range urgent {
				if !marks[at] {
					t.Errorf("byte %d is urgent, which it was not", at)
				}
			}
			if calm && len(urgent) != len(marks) {
				t.Errorf("%d urgent bytes, of %d", len(urgent), len(marks))
			}
			if len(urgent) == 0 || !slices.IsSorted(urgent) {
				t.Errorf("urgent bytes: %v", urgent)
			}
			endFrom()
			endTo() // nothing is under way to it any more
			select {
			case <-answered:
			case <-time.After(testTime):
				t.Error("the connection does not end")
			}
		})
	}
}

// TestDescriptorsInStream: descriptors that a program sends with its bytes, which
// TCP does not carry, are dropped, and the bytes around them arrive. The kernel
// ends a read at such a message.
func TestDescriptorsInStream(t *testing.T) {
	c := newCarried(t, os.Geteuid())
	rights := unix.UnixRights(0)
	for range 50 {
		for range 3 {
			if _, err := unix.SendmsgN(c.cprog.fd, []byte("with"), rights, nil, 0); err != nil {
				t.Fatal(err)
			}
			c.cprog.write("without")
		}
		for range 3 {
			c.sprog.read("withwithout")
		}
	}
	c.cprog.close()
	c.sprog.wantEnd(nil)
	c.sprog.close()
	c.over(t, false)
}
