// SPDX-License-Identifier: Apache-2.0

package bedtest

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Bubble runs f in a synctest bubble. Timers keep the fake time running, so a test that
// waits forever would not be found to be deadlocked: after some hours of fake time it
// panics, which shows who waits for what.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hangs := time.AfterFunc(6*time.Hour, func() { panic("the test hangs") })
		t.Cleanup(func() { hangs.Stop() })
		f(t)
	})
}

// Pattern returns n bytes that depend on seed.
func Pattern(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 99))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// Exchange sends data from one end to the other and checks what arrives.
func Exchange(t testing.TB, from io.Writer, to io.Reader, data []byte) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		done <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(to, got); err != nil {
		t.Fatalf("read: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("write: %v", err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("%d bytes differ", len(data))
	}
}

// A Conn is a connection whose end a test can wait for.
type Conn interface {
	io.Closer
	Done() <-chan struct{}
	Err() error
}

// Ended waits for the end of a connection and returns its error.
func Ended(t testing.TB, c Conn) error {
	t.Helper()
	select {
	case <-c.Done():
		return c.Err()
	case <-time.After(5 * time.Minute):
		t.Fatalf("connection did not end: %v", c)
		return nil
	}
}

// Finish closes both ends of a connection and waits until both have ended in order.
func Finish(t testing.TB, a, b Conn) {
	t.Helper()
	a.Close()
	b.Close()
	for _, c := range []Conn{a, b} {
		if err := Ended(t, c); err != nil {
			t.Errorf("connection ended with %v", err)
		}
	}
}

// List returns the answer to a question of an nl.Control.
func List[T any](t testing.TB, ask func(context.Context) (T, error)) T {
	t.Helper()
	v, err := ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// One returns the only row of an answer.
func One[T any](t testing.TB, ask func(context.Context) ([]T, error)) (row T) {
	t.Helper()
	rows := List(t, ask)
	if len(rows) != 1 {
		t.Fatalf("%d rows, want 1: %+v", len(rows), rows)
	}
	return rows[0]
}
