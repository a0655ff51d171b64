// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// lingerTime is how long the last close of a socket waits, in seconds.
const lingerTime = 5

// lingering returns a function that sends a message with a socket to the stack, and leaves the last
// close of the socket to it. The socket has data that nobody reads, so the close takes lingerTime.
func lingering(b []byte) func() {
	l, err := freshSocket()
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_RCVBUF, 1), // little memory for each
			unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
			unix.Listen(l, 4096),
		)
	}
	if err != nil {
		fatal(err)
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	return func() {
		fd, err := unsent(port)
		if err != nil {
			fatal(err)
		}
		defer unix.Close(fd)
		c, err := dial()
		if err != nil {
			return
		}
		if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fd), nil); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			_ = c.Close()
			return
		}
		go func() {
			defer c.Close()
			ended(c)
		}()
	}
}

// unsent returns a socket with data that its peer does not read, and with a linger time.
func unsent(port int) (int, error) {
	fd, err := freshSocket()
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	for b := make([]byte, 64<<10); err == nil; {
		_, err = unix.SendmsgN(fd, b, nil, nil, unix.MSG_DONTWAIT)
	}
	if err == unix.EAGAIN || err == unix.ENOMEM { //nolint:errorlint // of a system call
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: lingerTime})
	}
	if err != nil {
		_ = unix.Close(fd)
		time.Sleep(pause)
	}
	return fd, err
}
