// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// pair returns the ends of a TCP connection.
func pair(t *testing.T) (a, b *Socket, conns [2]*net.TCPConn) {
	t.Helper()
	conns[0], conns[1] = socktest.TCPPair(t)
	var all [2]*Socket
	for i, c := range conns {
		if err := c.SetDeadline(time.Now().Add(testTime)); err != nil {
			t.Fatal(err)
		}
		var err error
		if all[i], err = NewSocket(c); err != nil {
			t.Fatal(err)
		}
	}
	return all[0], all[1], conns
}

// TestUrgent sends a stream with urgent bytes: each byte arrives once, in its place. A byte is
// told as urgent unless the next one followed before it was read, and no other byte is.
func TestUrgent(t *testing.T) {
	testkind.System(t)
	for _, calm := range []bool{false, true} {
		t.Run(fmt.Sprint("calm ", calm), func(t *testing.T) {
			src, dst, _ := pair(t)
			seen := make(chan struct{}, 1)
			want := make([]byte, 0, 1<<20)
			marks := map[int]bool{}
			sender := make(chan error, 1)
			rng := rand.New(rand.NewPCG(1, 2))
			go func() {
				var err error
				for i := 0; i < 600 && err == nil; i++ {
					b := make([]byte, 1+rng.IntN(3000))
					for k := range b {
						b[k] = byte(rng.Uint32())
					}
					want = append(want, b...)
					if rng.IntN(3) > 0 {
						_, err = src.Write(b)
						continue
					}
					marks[len(want)-1] = true
					if _, err = src.WriteUrgent(b); calm {
						<-seen
					}
				}
				sender <- errors.Join(err, src.CloseWrite())
			}()
			var got []byte
			var urgent []int
			buf := make([]byte, 2000)
			for {
				n, u, err := dst.ReadMark(buf)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, buf[:n]...)
				if u {
					urgent = append(urgent, len(got)-1)
					if calm {
						seen <- struct{}{}
					}
				}
			}
			if err := <-sender; err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("stream of %d bytes differs from the %d sent", len(got), len(want))
			}
			for _, at := range urgent {
				if !marks[at] {
					t.Errorf("byte %d came as urgent", at)
				}
			}
			if calm && len(urgent) != len(marks) || len(urgent) == 0 {
				t.Errorf("%d of %d urgent bytes were told", len(urgent), len(marks))
			}
		})
	}
}

// TestReadAllocs: reading allocates nothing.
func TestReadAllocs(t *testing.T) {
	testkind.System(t)
	a, s, _ := pair(t)
	buf := make([]byte, 100)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := a.Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.ReadMark(buf); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a read", n)
	}
}

// TestPeekReset: a reset behind the end of the stream shows, and that end alone is no error.
func TestPeekReset(t *testing.T) {
	testkind.System(t)
	a, s, conns := pair(t)
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.AwaitInput(); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := s.Peek(); n != 0 || err != nil || s.HungUp() {
		t.Errorf("at the end: %d, %v, hung up %v", n, err, s.HungUp())
	}
	if err := errors.Join(conns[0].SetLinger(0), conns[0].Close()); err != nil {
		t.Fatal(err)
	}
	testkind.Eventually(t, "the reset does not show", func() (any, bool) { return nil, s.HungUp() })
	if n, err := s.Peek(); n != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after the reset: %d, %v", n, err)
	}
}
