// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func readByte(c *Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

func writeByte(c *Conn) error {
	_, err := c.Write([]byte{1})
	return err
}

func TestEmptyReadsAndWrites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Errorf("empty read: %d, %v", n, err)
		}
		if n, err := c.Write(nil); n != 0 || err != nil {
			t.Errorf("empty write: %d, %v", n, err)
		}
		b.finish(c, s)
	})
}

func TestReadFromWriteTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		data := pattern(9, 700<<10)
		var wg sync.WaitGroup
		wg.Go(func() {
			n, err := io.Copy(c, struct{ io.Reader }{bytes.NewReader(data)}) // ReadFrom
			if err != nil || n != int64(len(data)) {
				t.Errorf("ReadFrom: %d, %v", n, err)
			}
			c.CloseWrite()
		})
		var got bytes.Buffer
		n, err := io.Copy(struct{ io.Writer }{&got}, s) // WriteTo
		if err != nil || n != int64(len(data)) || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("WriteTo: %d, %v", n, err)
		}
		wg.Wait()

		// Errors of the reader or writer are returned, with the number of bytes copied so
		// far.
		boom := errors.New("boom")
		n, err = c.ReadFrom(io.MultiReader(strings.NewReader("tail"), iotest.ErrReader(boom)))
		if n != 0 || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("ReadFrom after CloseWrite: %d, %v", n, err)
		}
		n, err = s.ReadFrom(io.MultiReader(strings.NewReader("tail"), iotest.ErrReader(boom)))
		if n != 4 || err != boom {
			t.Errorf("ReadFrom a broken reader: %d, %v", n, err)
		}
		if got, err := io.ReadAll(io.LimitReader(c, 4)); string(got) != "tail" {
			t.Errorf("the part before: %q, %v", got, err)
		}
		b.finish(c, s)
	})
}

// TestReadFromAfterPeerClosed: a writer gets the error with its first bytes after the
// peer has closed.
func TestReadFromAfterPeerClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		r, w := io.Pipe()
		result := make(chan error, 1)
		go func() {
			_, err := c.ReadFrom(r)
			result <- err
		}()
		synctest.Wait() // it waits for data
		s.Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read: %d, %v, want the end", n, err)
		}
		go w.Write([]byte("late"))
		if err := <-result; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("ReadFrom: %v, want ECONNRESET", err)
		}
		r.Close()
		c.Close()
		<-s.Done()
	})
}

type errWriter struct{ err error }

func (w errWriter) Write([]byte) (int, error) { return 0, w.err }

// TestWriteToBrokenWriter checks that bytes that the writer did not take can be read
// later.
func TestWriteToBrokenWriter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if _, err := c.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
		boom := errors.New("boom")
		if n, err := s.WriteTo(errWriter{boom}); n != 0 || err != boom {
			t.Errorf("WriteTo: %d, %v", n, err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(s, got); err != nil || string(got) != "data" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
		b.finish(c, s)
	})
}

// TestResetDuringCopies resets a connection while ReadFrom and WriteTo use its buffers:
// another connection must not get these buffers meanwhile.
func TestResetDuringCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		slow, slowW := io.Pipe()
		errs := make(chan error, 2)
		go func() {
			_, err := c.ReadFrom(slow) // it uses a piece of the send buffer
			errs <- err
		}()
		if err := writeByte(s); err != nil {
			t.Fatal(err)
		}
		pr, pw := io.Pipe()
		go func() {
			_, err := c.WriteTo(pw) // it uses a piece of the RMB element
			errs <- err
		}()
		time.Sleep(settled)
		s.Abort()
		if err := b.ended(c); err == nil {
			t.Error("connection ended in order")
		}
		before := b.client.driver.MemoryInUse()
		if _, err := slowW.Write([]byte("late")); err != nil {
			t.Error(err)
		}
		if _, err := pr.Read(make([]byte, 10)); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("copy ended with %v, want ECONNRESET", err)
			}
		}
		c2, s2 := b.connect()
		b.exchange(c2, s2, pattern(1, 100<<10))
		b.finish(c2, s2)
		if after := b.client.driver.MemoryInUse(); after > before+1<<20 {
			t.Errorf("memory in use grew from %d to %d", before, after)
		}
		slowW.Close()
		pr.Close()
		c.Close()
	})
}

// TestConcurrentWrites has many writers on one connection: each write arrives in one
// piece. Writers wait for each other with a mutex. A bubble does not take that for
// blocking, so this test runs in real time.
func TestConcurrentWrites(t *testing.T) {
	b := newBed(t, bedConfig{})
	c, s := b.connect()
	const writers, each, size = 8, 30, 3000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if _, err := c.Write(bytes.Repeat([]byte{byte(w)}, size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	counts := map[byte]int{}
	buf := make([]byte, size)
	for range writers * each {
		if _, err := io.ReadFull(s, buf); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(buf, buf[:1]) != size {
			t.Fatal("writes are mixed")
		}
		counts[buf[0]]++
	}
	for w, n := range counts {
		if n != each {
			t.Errorf("%d writes of writer %d", n, w)
		}
	}
	wg.Wait()
	b.finish(c, s)
}
