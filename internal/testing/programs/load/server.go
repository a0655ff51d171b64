// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
)

// Each connection begins with one byte for the operation, and the size of the messages in
// 4 bytes, big endian.
const (
	opSink = 's' // read until the end, then answer with the number of bytes, in 8 bytes
	opEcho = 'e' // answer each message with itself
	opFree = 'f' // return unused memory to the system, then answer with one byte
)

const (
	headLength = 5
	// maxMessage and maxEcho limit messages that are written and echoed. A client may not
	// read before it has sent the whole message, so a message and its echo must fit into
	// the buffers of the sockets.
	maxMessage = 64 << 20
	maxEcho    = 64 << 10
)

// sinkBuffer is the size of the largest read of the server. The server does not know
// where messages end.
const sinkBuffer = 1 << 20

// serve serves connections until ctx ends.
func (n network) serve(ctx context.Context, address string) error {
	ln, err := n.listen(address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	fmt.Println("listening")
	for {
		c, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := answer(c); err != nil {
				fmt.Fprintln(os.Stderr, "load: server:", err)
			}
		}()
	}
}

func answer(c net.Conn) error {
	var head [headLength]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(head[1:]))
	if size < 1 || size > maxMessage {
		return fmt.Errorf("a message of %d bytes", size)
	}
	switch head[0] {
	case opSink:
		return sink(c)
	case opEcho:
		if size > maxEcho {
			return fmt.Errorf("an echo of %d bytes", size)
		}
		return echo(c, make([]byte, size))
	case opFree:
		debug.FreeOSMemory()
		_, err := c.Write([]byte{opFree})
		return err
	}
	return fmt.Errorf("unknown request %q", head[0])
}

func sink(c net.Conn) error {
	var total int64
	buf := make([]byte, sinkBuffer)
	for {
		n, err := c.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(total)))
	return err
}

// echo sends back each part of a message when it arrives. buf limits the size of a part.
func echo(c net.Conn, buf []byte) error {
	for {
		n, err := c.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return err
		}
	}
}
