// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// afterTrim is longer than unused memory is kept.
const afterTrim = 6 * time.Second

// slowReader fills the buffer and returns much later.
type slowReader struct {
	data []byte
	wait time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	// Real time: none. Only tests in bubbles have a slowReader.
	time.Sleep(r.wait)
	return n, nil
}

// TestTrimHeld: data that is written into a send buffer for a longer time than a
// connection has to be idle is not lost, and data that waits for a slow reader is not
// lost either.
func TestTrimHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		want := pattern(3, 500<<10)
		sent := make(chan error, 1)
		go func() {
			_, err := c.ReadFrom(&slowReader{want, afterTrim})
			c.CloseWrite()
			sent <- err
		}()
		var got bytes.Buffer
		for p := make([]byte, 10_000); ; time.Sleep(afterTrim) {
			n, err := s.Read(p)
			got.Write(p[:n])
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := <-sent; err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%v; received %d bytes of %d, equal: %v", err, got.Len(), len(want), bytes.Equal(got.Bytes(), want))
		}
		b.finish(c, s)
	})
}
