// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestUrgent sends an urgent byte with other data and reads it in every way.
func TestUrgent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if _, err := s.ReadUrgent(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("nothing urgent: %v", err)
		}
		select {
		case <-s.UrgentReady():
			t.Error("notified for nothing")
		default:
		}
		if n, err := c.WriteUrgent([]byte("abcU")); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := c.Write([]byte("def")); err != nil {
			t.Fatal(err)
		}
		<-s.UrgentReady()
		buf := make([]byte, 10)
		if n, err := s.Read(buf); string(buf[:n]) != "abc" || err != nil {
			t.Errorf("up to the mark: %q, %v", buf[:n], err)
		}
		if !s.AtMark() {
			t.Error("not at the mark")
		}
		if u, err := s.ReadUrgent(); u != 'U' || err != nil {
			t.Errorf("%q, %v", u, err)
		}
		if n, err := s.Read(buf); string(buf[:n]) != "def" || err != nil {
			t.Errorf("behind the mark: %q, %v", buf[:n], err)
		}

		// With SO_OOBINLINE, in the other direction.
		if err := c.SetOOBInline(true); err != nil {
			t.Fatal(err)
		}
		if _, err := s.WriteUrgent([]byte("xyU")); err != nil {
			t.Fatal(err)
		}
		<-c.UrgentReady()
		if _, err := c.ReadUrgent(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("inline: %v", err)
		}
		for _, want := range []string{"xy", "U"} {
			if n, err := c.Read(buf); string(buf[:n]) != want || err != nil {
				t.Errorf("%q, %v; want %q", buf[:n], err, want)
			}
		}
		b.finish(c, s)
	})
}

// TestUrgentNobodyReads: a writer continues after urgent bytes although the peer's
// program reads none of them.
func TestUrgentNobodyReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		start := time.Now()
		go func() {
			for range 100 {
				if _, err := c.WriteUrgent([]byte("data!")); err != nil {
					t.Error(err)
				}
			}
			c.CloseWrite()
		}()
		time.Sleep(settled)
		got, err := io.ReadAll(s)
		if err != nil || len(got) < 400 || len(got) >= 500 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		b.finish(c, s)
	})
}

// markPipe is an UrgentReader and an UrgentWriter.
type markPipe struct {
	in  []string // a last byte of '!' is urgent
	out []string
}

func (m *markPipe) ReadMark(p []byte) (n int, urgent bool, err error) {
	if len(m.in) == 0 {
		return 0, false, io.EOF
	}
	s := m.in[0]
	m.in = m.in[1:]
	return copy(p, s), s[len(s)-1] == '!', nil
}

func (m *markPipe) Read(p []byte) (int, error) {
	n, _, err := m.ReadMark(p)
	return n, err
}

func (m *markPipe) Write(p []byte) (int, error) {
	m.out = append(m.out, string(p))
	return len(p), nil
}

func (m *markPipe) WriteUrgent(p []byte) (int, error) {
	m.out = append(m.out, "urgent "+string(p))
	return len(p), nil
}

// carryUrgent makes a connection. WriteTo of the server fills got, and ReadFrom of the
// client sends the parts, one after the other. done receives the error of WriteTo.
func carryUrgent(t *testing.T, inline bool, parts ...string) (b *bed, c, s *Conn, got *markPipe, done chan error) {
	t.Helper()
	b = newBed(t, bedConfig{})
	c, s = b.connect()
	if err := s.SetOOBInline(inline); err != nil {
		t.Fatal(err)
	}
	got, done = &markPipe{}, make(chan error)
	go func() {
		_, err := s.WriteTo(got)
		done <- err
	}()
	for _, part := range parts {
		if _, err := c.ReadFrom(&markPipe{in: []string{part}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
	}
	return b, c, s, got, done
}

// TestUrgentComesAlone: WriteTo passes an urgent byte on although no data follows it,
// with and without SO_OOBINLINE.
func TestUrgentComesAlone(t *testing.T) {
	for _, inline := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b, c, s, got, done := carryUrgent(t, inline, "data", "!")
			synctest.Wait()
			if want := "data, urgent !"; strings.Join(got.out, ", ") != want {
				t.Errorf("inline %v: %q, want %q", inline, got.out, want)
			}
			c.CloseWrite()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			b.finish(c, s)
		})
	}
}

// TestUrgentCopies: ReadFrom and WriteTo keep the position of urgent bytes, with and
// without SO_OOBINLINE.
func TestUrgentCopies(t *testing.T) {
	for _, inline := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b, c, s, got, done := carryUrgent(t, inline, "ab", "c!", "d", "!")
			c.CloseWrite()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			all := ""
			for _, p := range got.out {
				all += p + ","
			}
			if want := "ab,c,urgent !,d,urgent !,"; all != want {
				t.Errorf("inline %v: got %s want %s", inline, all, want)
			}
			b.finish(c, s)
		})
	}
}
