// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Splice carries the bytes of a program over outer: the peer has declined SMC, or this end has. It
// returns when both streams have ended, or one of the programs has reset the connection. Urgent bytes
// become ordinary ones.
func (f *Flow) Splice() error {
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
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		f.Reset()
	}
	return err
}
