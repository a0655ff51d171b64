// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func joined(a, b []byte) string { return string(a) + string(b) }

// write writes p and waits until the peer has it.
func write(t *testing.T, c *Conn, p string) {
	t.Helper()
	if _, err := c.Write([]byte(p)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(settled)
}

// TestPeek checks what Peek returns for different states of the stream.
func TestPeek(t *testing.T) {
	type step struct {
		peek    int // bytes wanted
		want    string
		err     error
		discard int // all of them
	}
	for name, tt := range map[string]struct {
		before func(t *testing.T, c, s *Conn) // c writes, s reads
		steps  []step
	}{
		"data": {
			func(t *testing.T, c, s *Conn) { write(t, c, "hello world") },
			[]step{{1, "hello world", nil, 6}, {5, "world", nil, 0}, {0, "world", nil, 5}, {0, "", nil, 0}},
		},
		"end of the stream": {
			func(t *testing.T, c, s *Conn) { write(t, c, "end"); _ = c.CloseWrite(); time.Sleep(settled) },
			[]step{{3, "end", nil, 0}, {4, "end", io.EOF, 3}, {1, "", io.EOF, 0}, {0, "", io.EOF, 0}},
		},
		"urgent apart": {
			func(t *testing.T, c, s *Conn) {
				if _, err := c.WriteUrgent([]byte("abU")); err != nil {
					t.Fatal(err)
				}
				write(t, c, "cd")
			},
			[]step{{2, "ab", nil, 0}, {3, "ab", ErrUrgentMark, 2}, {1, "cd", nil, 2}},
		},
		"urgent inline": {
			func(t *testing.T, c, s *Conn) {
				_ = s.SetOOBInline(true)
				if _, err := c.WriteUrgent([]byte("abU")); err != nil {
					t.Fatal(err)
				}
				write(t, c, "cd")
			},
			[]step{{3, "ab", ErrUrgentMark, 2}, {1, "U", nil, 1}, {2, "cd", nil, 2}},
		},
		"reset": {
			func(t *testing.T, c, s *Conn) { write(t, c, "kept"); _ = c.Abort(); time.Sleep(settled) },
			[]step{{1, "kept", nil, 4}, {1, "", syscall.ECONNRESET, 0}},
		},
		"closed": {
			func(t *testing.T, c, s *Conn) { _ = s.Close() },
			[]step{{0, "", net.ErrClosed, 0}},
		},
		"too much": {
			func(*testing.T, *Conn, *Conn) {},
			[]step{{32<<10 + 1, "", bufio.ErrBufferFull, 0}, {-1, "", bufio.ErrNegativeCount, 0}, {0, "", nil, 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				tt.before(t, c, s)
				for i, st := range tt.steps {
					p, q, err := s.Peek(st.peek)
					if joined(p, q) != st.want || !errors.Is(err, st.err) {
						t.Errorf("step %d: %q, %v; want %q, %v", i, joined(p, q), err, st.want, st.err)
					}
					if n, err := s.Discard(st.discard); n != st.discard || err != nil {
						t.Errorf("step %d: discarded %d, %v", i, n, err)
					}
				}
				c.Close()
				s.Close()
				b.ended(c)
				b.ended(s)
			})
		})
	}
}

// TestPeekWaits: Peek waits until there is enough data, and Reserve until there is enough
// room.
func TestPeekWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		write(t, c, "ab")
		go func() {
			time.Sleep(time.Second)
			_, _ = c.Write([]byte("cd"))
		}()
		if p, q, err := s.Peek(4); joined(p, q) != "abcd" || err != nil {
			t.Errorf("%q, %v", joined(p, q), err)
		}
		go func() {
			time.Sleep(time.Second)
			_, _ = c.Write([]byte("efgh"))
		}()
		if n, err := s.Discard(7); n != 7 || err != nil {
			t.Errorf("discarded %d, %v", n, err)
		}
		if p, q, err := s.Peek(1); joined(p, q) != "h" || err != nil {
			t.Errorf("%q, %v", joined(p, q), err)
		}
		_, _ = s.Discard(1)

		// The peer's element is full, and the send buffer has room for only 1000 bytes.
		data := pattern(3, 127<<10)
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			_, _ = io.CopyN(io.Discard, s, int64(len(data)))
		}()
		start := time.Now()
		p, q, err := c.Reserve(64 << 10)
		if len(p)+len(q) != 64<<10 || err != nil {
			t.Errorf("reserved %d, %v", len(p)+len(q), err)
		}
		if time.Since(start) < time.Second {
			t.Error("there was room before the peer had read")
		}
		if err := c.Commit(0); err != nil {
			t.Error(err)
		}
		b.finish(c, s)
	})
}

// TestPeekReserveStream sends a stream of many times the size of both buffers with Reserve
// and receives it with Peek, in pieces of all sizes: the buffers wrap at many places.
func TestPeekReserveStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		data := pattern(4, 2<<20)
		go func() {
			wraps := 0
			for rest, i := data, 1; len(rest) > 0; i++ {
				want := min(1+i*7919%(40<<10), len(rest))
				p, q, err := c.Reserve(want)
				if err != nil || len(p)+len(q) < want {
					t.Errorf("reserve %d: %d, %v", want, len(p)+len(q), err)
					return
				}
				n := copy(p, rest[:want])
				if n < want {
					wraps++
				}
				copy(q, rest[n:want])
				if err := c.Commit(want); err != nil {
					t.Error(err)
					return
				}
				rest = rest[want:]
			}
			if wraps == 0 {
				t.Error("no space wrapped")
			}
			c.CloseWrite()
		}()
		var got []byte
		wraps := 0
		for i := 1; ; i++ {
			p, q, err := s.Peek(1 + i*104729%(30<<10))
			n := len(p) + len(q)
			if err != nil && (err != io.EOF || n == 0) {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
			if len(q) > 0 {
				wraps++
			}
			n = min(n, 1+i*611953%(50<<10))
			got = append(got, slices.Concat(p, q)[:n]...)
			if m, err := s.Discard(n); m != n || err != nil {
				t.Fatalf("discard %d: %d, %v", n, m, err)
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d differ", len(got), len(data))
		}
		if wraps == 0 {
			t.Error("no data wrapped")
		}
		b.finish(c, s)
	})
}

// TestMemoryOutlivesEnd: memory that Peek or Reserve has returned is neither given to
// another connection nor unmapped until the program returns it, however the connection
// ends.
func TestMemoryOutlivesEnd(t *testing.T) {
	for name, end := range map[string]func(b *bed, c, s *Conn){
		"reset by the peer": func(b *bed, c, s *Conn) { _ = c.Abort() },
		"closed":            func(b *bed, c, s *Conn) { _ = s.Close() },
		"aborted":           func(b *bed, c, s *Conn) { _ = s.Abort() },
		"stack closed":      func(b *bed, c, s *Conn) { _ = b.server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				c, s := b.connect()
				write(t, c, "precious")
				p, _, err := s.Peek(8)
				if err != nil {
					t.Fatal(err)
				}
				w, _, err := s.Reserve(8)
				if err != nil {
					t.Fatal(err)
				}
				end(b, c, s)
				b.ended(s)
				if name != "stack closed" {
					c2, s2 := b.connect()
					b.exchange(c2, s2, pattern(1, 100<<10))
					b.exchange(s2, c2, pattern(2, 100<<10))
					b.finish(c2, s2)
				}
				if string(p) != "precious" {
					t.Errorf("%q: memory of Peek was overwritten before Discard", p)
				}
				copy(w, "no fault") // not unmapped
				if err := s.Commit(8); err == nil {
					t.Error("data was committed to a connection that has ended")
				}
				if n, err := s.Discard(8); n != 0 || err == nil {
					t.Errorf("discarded %d, %v after the end", n, err)
				}
				s.Close()
				c.Close()
				b.ended(c)
			})
		})
	}
}

// TestCommitRules: Commit is only allowed for memory that is reserved, and once.
func TestCommitRules(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if err := c.Commit(1); !errors.Is(err, ErrNotReserved) {
			t.Errorf("without a reservation: %v", err)
		}
		reserve := func() int {
			p, q, err := c.Reserve(1)
			if err != nil {
				t.Fatal(err)
			}
			copy(p, "abc")
			return len(p) + len(q)
		}
		if n := reserve(); n != 64<<10 {
			t.Errorf("%d bytes free of an unused buffer", n)
		}
		if err := c.Commit(64<<10 + 1); !errors.Is(err, ErrNotReserved) {
			t.Errorf("too much: %v", err)
		}
		reserve()
		if err := c.Commit(3); err != nil {
			t.Error(err)
		}
		if err := c.Commit(1); !errors.Is(err, ErrNotReserved) {
			t.Errorf("twice: %v", err)
		}
		reserve()
		write(t, c, "def") // this uses the reserved memory
		if err := c.Commit(3); !errors.Is(err, ErrNotReserved) {
			t.Errorf("after a Write: %v", err)
		}
		if _, _, err := c.Reserve(64<<10 + 1); !errors.Is(err, bufio.ErrBufferFull) {
			t.Errorf("more than the buffer: %v", err)
		}
		reserve()
		c.CloseWrite()
		if err := c.Commit(3); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("after CloseWrite: %v", err)
		}
		if _, _, err := c.Reserve(1); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("after CloseWrite: %v", err)
		}
		got, err := io.ReadAll(s)
		if string(got) != "abcdef" || err != nil {
			t.Errorf("the peer has %q, %v", got, err)
		}
		b.finish(c, s)
	})
}

// TestPeekReserveEnd: deadlines, Close and a reset by the peer end calls that wait.
func TestPeekReserveEnd(t *testing.T) {
	calls := map[string]func(*Conn) error{
		"Peek":    func(c *Conn) error { _, _, err := c.Peek(1); return err },
		"Discard": func(c *Conn) error { _, err := c.Discard(1); return err },
		"Reserve": func(c *Conn) error { _, _, err := c.Reserve(1); return err },
	}
	for name, tt := range map[string]struct {
		end  func(c, s *Conn)
		want func(error) bool
	}{
		"deadline": {func(c, s *Conn) { _ = c.SetDeadline(time.Now().Add(time.Second)) }, isTimeout},
		"expired":  {func(c, s *Conn) { _ = c.SetDeadline(time.Unix(1, 0)) }, isTimeout},
		"close":    {func(c, s *Conn) { _ = c.Close() }, func(err error) bool { return errors.Is(err, net.ErrClosed) }},
		"reset":    {func(c, s *Conn) { _ = s.Abort() }, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
	} {
		for call, f := range calls {
			t.Run(call+"/"+name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{})
					c, s := b.connect()
					if _, err := c.Write(pattern(5, 128<<10)); err != nil { // nobody reads: all is full
						t.Fatal(err)
					}
					time.Sleep(settled)
					done := make(chan error, 1)
					go func() { done <- f(c) }()
					synctest.Wait()
					select {
					case err := <-done:
						t.Fatalf("it did not wait: %v", err)
					default:
					}
					tt.end(c, s)
					if err := <-done; !tt.want(err) {
						t.Error(err)
					}
					s.Abort()
					c.Close()
					b.ended(c)
					b.ended(s)
				})
			})
		}
	}
}
