// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestLetGo has a client's program go before it is known what becomes of its connection: connect() returns while the server's program
// waits, and what the client sends meanwhile is there for whoever carries it, or the connection is reset.
func TestLetGo(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, what := range []string{"spliced", "reset", "made again"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			b := newBed(t, func(b *bed, f *Flow) {
				if f.Role == smc.Client {
					testkind.Eventually(b.t, "the program has its connection", func() (any, bool) {
						has, err := f.LetGo()
						return err, has || err != nil
					})
					<-goOn
				}
				switch {
				case agree(f) != nil:
					f.Reset()
				case f.Role == smc.Server || what == "spliced":
					_ = f.Splice()
				case what == "reset":
					f.Reset()
				default:
					f.Retry() // too late for that
				}
			})
			l := b.listen(b.B.Addr())
			accepted := make(chan net.Conn, 1)
			go func() {
				if c, err := l.Accept(); err == nil {
					accepted <- c
				}
			}()
			c := b.dial(l)
			select {
			case <-accepted:
				t.Fatal("the server has the connection, of which nothing was agreed on")
			default:
			}
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			close(goOn)
			s := <-accepted
			defer s.Close()
			b.must(errors.Join(c.SetDeadline(time.Now().Add(testkind.Patience)), s.SetDeadline(time.Now().Add(testkind.Patience))))
			if what == "spliced" {
				got := make([]byte, 5)
				if _, err := io.ReadFull(s, got); err != nil || string(got) != "hello" {
					t.Errorf("the server reads %q, %v", got, err)
				}
				return
			}
			for _, c := range []net.Conn{c, s} {
				if _, err := io.ReadAll(c); err == nil {
					t.Error("the stream ends in order")
				}
			}
		})
	}
}

// TestLetGoInVain has a program whose device is down when it is let go, and whose connection is given up then: its TCP goes on as if
// nothing had come, and the connection that it makes is TCP.
func TestLetGoInVain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, func(b *bed, f *Flow) {
		if f.Role == smc.Server {
			b.t.Errorf("the server's stack has got %v", f.Tuple)
			f.Reset()
			return
		}
		down := b.A.SetLink(0, false)
		has, err := f.LetGo()
		if has || err != nil || down != nil {
			b.t.Errorf("the program has its connection: %t, %v, %v", has, err, down)
		}
		if err := b.A.SetLink(0, true); err != nil {
			b.t.Error(err)
		}
		f.Retry()
	})
	client, server := b.connect(b.listen(b.B.Addr()))
	b.wantTaken(1, 0)
	b.exchanges(client, server)
	b.gone()
}
