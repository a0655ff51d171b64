// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// open makes a connection and tells the server what it is for.
func (n network) open(address string, op byte, size int) (net.Conn, error) {
	c, err := n.dial(address)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(binary.BigEndian.AppendUint32([]byte{op}, uint32(size))); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// write writes messages for the time d and returns the number of bytes that the
// server has read.
func (n network) write(address string, d time.Duration, size int) (int64, time.Duration, error) {
	c, err := n.open(address, opSink, size)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	buf := make([]byte, size)
	var sent int64
	start := time.Now()
	for time.Since(start) < d {
		n, err := c.Write(buf)
		sent += int64(n)
		if err != nil {
			return 0, 0, err
		}
	}
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return 0, 0, fmt.Errorf("%T has no CloseWrite", c)
	}
	if err := half.CloseWrite(); err != nil {
		return 0, 0, err
	}
	var count [8]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	if got := int64(binary.BigEndian.Uint64(count[:])); got != sent {
		return 0, 0, fmt.Errorf("the server received %d bytes of %d", got, sent)
	}
	return sent, took, nil
}

// exchange sends a message and waits for its echo.
func exchange(c net.Conn, message, echo []byte) error {
	if _, err := c.Write(message); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, echo); err != nil {
		return err
	}
	if !bytes.Equal(message, echo) {
		return errors.New("the echo is not what was sent")
	}
	return nil
}

// roundTrip returns the number of exchanges of a message during the time d.
func (n network) roundTrip(address string, d time.Duration, size int) (int64, time.Duration, error) {
	c, err := n.open(address, opEcho, size)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	message, back := pattern(size), make([]byte, size)
	// The first one waits for the server to come to this connection.
	if err := exchange(c, message, back); err != nil {
		return 0, 0, err
	}
	var count int64
	start := time.Now()
	for ; time.Since(start) < d; count++ {
		if err := exchange(c, message, back); err != nil {
			return 0, 0, err
		}
	}
	return count, time.Since(start), nil
}

// connect returns the number of connections made one after the other during
// the time d, with one exchange on each.
func (n network) connect(address string, d time.Duration, size int) (int64, time.Duration, error) {
	message, back := pattern(size), make([]byte, size)
	var count int64
	start := time.Now()
	for ; time.Since(start) < d; count++ {
		c, err := n.open(address, opEcho, size)
		if err != nil {
			return 0, 0, err
		}
		if err := errors.Join(exchange(c, message, back), c.Close()); err != nil {
			return 0, 0, err
		}
	}
	return count, time.Since(start), nil
}

// pattern returns size bytes that are not all the same.
func pattern(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}
