// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// acceptPause is how long the server waits after it could not accept a connection.
const acceptPause = 10 * time.Millisecond

// Serve echoes the streams of a listener and, if udp is not nil, datagrams, until ctx is
// done. It then closes both and ends the connections. A stream that the client has ended
// is ended by the server too, after all of it was sent back. An error of a connection ends
// that connection only. An error of the listener is passed to complain, because it can be
// a lack of descriptors that passes.
func Serve(ctx context.Context, ln net.Listener, udp net.PacketConn, complain func(error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() {
		_ = ln.Close()
		if udp != nil {
			_ = udp.Close()
		}
	})
	defer stop()
	if udp != nil {
		wg.Go(func() { echoDatagrams(udp) })
	}
	for {
		c, err := ln.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			complain(fmt.Errorf("accept: %w", err))
			time.Sleep(acceptPause)
			continue
		}
		wg.Go(func() {
			defer c.Close()
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer end()
			echo(c)
		})
	}
}

// echo sends back what comes. Urgent bytes come in their place in the stream.
func echo(c net.Conn) {
	if err := urgentInline(c); err != nil {
		return
	}
	b := make([]byte, 16<<10)
	for {
		n, err := c.Read(b)
		if n > 0 {
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if h, ok := c.(interface{ CloseWrite() error }); ok && errors.Is(err, io.EOF) {
				_ = h.CloseWrite()
			}
			return
		}
	}
}

// urgentInline leaves urgent bytes in the stream, if c is a socket.
func urgentInline(c net.Conn) error {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	return errors.Join(err, serr)
}

func echoDatagrams(udp net.PacketConn) {
	b := make([]byte, 64<<10)
	for {
		n, from, err := udp.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = udp.WriteTo(b[:n], from) // a datagram may be lost
		}
	}
}
