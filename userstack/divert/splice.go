// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Splice carries the bytes of a program over outer: the peer has declined SMC, or this end has. It
// returns when both streams have ended, or one of the programs has reset the connection.
func (f *Flow) Splice() error {
	f.mu.Lock()
	f.spliced = true
	f.mu.Unlock()
	fd, err := f.Split()
	if err != nil {
		return err
	}
	unix.Close(fd)
	inner, err := f.program().tcp()
	if err != nil {
		f.Reset()
		return err
	}
	f.outer.control(limitUnsent)
	up := make(chan error, 1)
	go f.d.cfg.Guard.Func("a spliced connection", func() {
		err := io.ErrUnexpectedEOF // of a panic
		defer func() { up <- err }()
		err = f.splice(f.Outer(), inner)
	})()
	err = f.splice(inner, f.Outer())
	if other := <-up; err == nil {
		err = other
	}
	if err == nil {
		f.Finish(false)
	}
	return nil
}

// splice carries one direction. The end of the stream is the end of the other one, an error resets both.
func (f *Flow) splice(to, from *net.TCPConn) error {
	err := carry(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		f.Reset()
	}
	return err
}

// spliceBuffer is how many bytes of one direction are read at a time.
const spliceBuffer = 32 << 10

// carry carries bytes until the stream ends, and urgent ones as such. It is no io.Copy: that uses splice(2),
// which stops at an urgent byte, and never goes on.
func carry(to, from *net.TCPConn) error {
	src, err := from.SyscallConn()
	if err != nil {
		return err
	}
	dst, err := to.SyscallConn()
	if err != nil {
		return err
	}
	// An urgent byte is read in its place.
	var set error
	err = src.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	if err := errors.Join(err, set); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	buf := make([]byte, spliceBuffer)
	for {
		n, urgent, err := readMarked(src, buf)
		if err != nil || n == 0 {
			return err
		}
		if urgent {
			err = writeUrgent(dst, buf[:n])
		} else {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}

// readMarked reads bytes of a connection, no more than the ones before an urgent byte, or that byte. 0 is the end of the
// stream.
func readMarked(c syscall.RawConn, buf []byte) (n int, urgent bool, err error) {
	var failed error
	err = c.Read(func(fd uintptr) bool {
		b := buf
		mark, merr := unix.IoctlGetInt(int(fd), unix.SIOCATMARK)
		if urgent = merr == nil && mark == 1; urgent {
			b = b[:1]
		}
		for {
			if n, failed = unix.Read(int(fd), b); failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("read", failed)
	}
	return n, urgent, err
}

// writeUrgent writes an urgent byte.
func writeUrgent(c syscall.RawConn, b []byte) error {
	var failed error
	err := c.Write(func(fd uintptr) bool {
		for {
			if _, failed = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_OOB|unix.MSG_NOSIGNAL); failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("sendmsg", failed)
	}
	return err
}
