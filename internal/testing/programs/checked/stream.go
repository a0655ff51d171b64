// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"
)

// Result is what became of a connection.
type Result struct {
	// Seed identifies the connection on both sides.
	Seed uint64 `json:"seed"`
	// Sent and Received count the bytes of the streams.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Error is why the connection failed; empty if all was sent, received and closed.
	Error string `json:"error,omitempty"`
	// Corrupted means that a wrong byte arrived, or that the stream ended in order before
	// all had arrived.
	Corrupted bool `json:"corrupted,omitempty"`
	// Hung means that the connection made no progress within the limit.
	Hung bool `json:"hung,omitempty"`
	// Seconds is how long the connection existed, from the call of connect on.
	Seconds float64 `json:"seconds"`
}

// plan is what both sides do on a connection. The client sends it first.
type plan struct {
	Magic uint64 // of every plan: anything else at the beginning is wrong
	Seed  uint64
	Bytes uint64 // of each direction
	For   uint64 // nanoseconds; 0 means until Bytes
	Pause uint64 // nanoseconds between two blocks
	Limit uint64 // nanoseconds without progress
}

// magic begins each connection.
const magic = 0x636865636b656421

// blockSize is the largest block. Each begins with its length in four bytes, and an empty
// one is the end.
const blockSize = 16 << 10

var errWrong = errors.New("wrong bytes")

// generator makes the bytes of one direction.
func generator(seed uint64, toServer bool) *rand.ChaCha8 {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	if toServer {
		key[8] = 1
	}
	return rand.NewChaCha8(key)
}

// exchange sends and receives the streams of a plan on a connection.
func (p plan) exchange(c *net.TCPConn, client bool) Result {
	r := Result{Seed: p.Seed}
	sent := make(chan error, 1)
	go func() { sent <- p.send(c, client, &r.Sent) }()
	err := p.receive(c, client, &r.Received)
	if err != nil {
		c.Close() // ends send too
	}
	if serr := <-sent; err == nil || errors.Is(err, net.ErrClosed) || ended(err) && hasError(serr) {
		err = serr
	}
	if err == nil {
		err = p.end(c, client)
	}
	r.fail(err)
	return r
}

// ended reports whether an error of a read is the end of the stream, where there should have been more.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// hasError reports whether an error of a write is that of the connection. A socket reports it once: if the write has it, the read
// that waits beside it returns the end of the stream. It is not EPIPE, which is the error of a reset behind an end of the stream.
func hasError(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && errno != syscall.EPIPE
}

// fail notes why a connection failed.
func (r *Result) fail(err error) {
	if err == nil {
		return
	}
	r.Error = err.Error()
	r.Corrupted = errors.Is(err, errWrong) || ended(err)
	r.Hung = errors.Is(err, os.ErrDeadlineExceeded)
}

func (p plan) send(c net.Conn, client bool, count *int64) error {
	data := generator(p.Seed, client)
	block := make([]byte, 4+blockSize)
	for end := time.Now().Add(time.Duration(p.For)); p.more(*count, end); {
		n := blockSize
		if p.For == 0 {
			n = int(min(uint64(n), p.Bytes-uint64(*count)))
		}
		binary.BigEndian.PutUint32(block, uint32(n))
		_, _ = data.Read(block[4 : 4+n]) // it cannot fail
		if err := p.write(c, block[:4+n]); err != nil {
			return err
		}
		*count += int64(n)
		time.Sleep(time.Duration(p.Pause))
	}
	return p.write(c, make([]byte, 4))
}

func (p plan) more(count int64, end time.Time) bool {
	if p.For > 0 {
		return time.Now().Before(end)
	}
	return uint64(count) < p.Bytes
}

func (p plan) write(c net.Conn, b []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(time.Duration(p.Limit))); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// limited sets the deadline of each read.
type limited struct {
	net.Conn
	limit time.Duration
}

func (l limited) Read(b []byte) (int, error) {
	if err := l.SetReadDeadline(time.Now().Add(l.limit)); err != nil {
		return 0, err
	}
	return l.Conn.Read(b)
}

func (p plan) receive(c net.Conn, client bool, count *int64) error {
	data := generator(p.Seed, !client)
	in := bufio.NewReader(limited{c, time.Duration(p.Limit)})
	got, want := make([]byte, blockSize), make([]byte, blockSize)
	for {
		if _, err := io.ReadFull(in, got[:4]); err != nil {
			return fmt.Errorf("after %d bytes: %w", *count, err)
		}
		n := binary.BigEndian.Uint32(got)
		if n == 0 {
			return nil
		}
		if n > blockSize {
			return fmt.Errorf("a block of %d bytes after %d bytes: %w", n, *count, errWrong)
		}
		if _, err := io.ReadFull(in, got[:n]); err != nil {
			return fmt.Errorf("after %d bytes: %w", *count, err)
		}
		_, _ = data.Read(want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("in the block after %d bytes: %w", *count, errWrong)
		}
		*count += int64(n)
	}
}

// end closes a connection in order: the client shuts down first, and each side waits for
// the end of the stream of the other one.
func (p plan) end(c *net.TCPConn, client bool) error {
	if client {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	n, err := limited{c, time.Duration(p.Limit)}.Read(make([]byte, 1))
	if n > 0 {
		return fmt.Errorf("after the end: %w", errWrong)
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("at the end: %w", err)
	}
	return c.Close()
}
