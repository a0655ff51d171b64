// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// A program may be started with sockets that already listen: socket activation (LISTEN_FDS) and
// servers that execute themselves again. It never calls listen() on them. So the launcher does at
// the start what it otherwise does at that call.

// inheritedSocket is a copy of a listening socket with which the program was started, and the
// program's descriptor.
type inheritedSocket struct{ fd, number int }

// maxInherited limits the sockets that are passed to the launcher.
const maxInherited = 256

// passInherited passes the listening sockets with which this process was started to the launcher.
func passInherited(sock int) {
	passed := 0
	for _, fd := range numbers("/proc/self/fd") {
		if passed < maxInherited && fd != sock && listensTCP(fd) && inheritable(fd) {
			report(sock, stepInherited, syscall.Errno(fd), fd)
			passed++
		}
	}
}

func inheritable(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// listensTCP reports whether a descriptor is a TCP socket that listens.
func listensTCP(fd int) bool {
	for _, want := range []struct{ name, value int }{
		{unix.SO_ACCEPTCONN, 1}, {unix.SO_PROTOCOL, unix.IPPROTO_TCP}, {unix.SO_TYPE, unix.SOCK_STREAM},
	} {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.name); err != nil || v != want.value {
			return false
		}
	}
	return true
}

// inherit marks the listening sockets with which process pid was started. It is called before the
// first call of the program is answered, and closes the copies.
func (s *supervisor) inherit(sockets []inheritedSocket, pid int) {
	for _, x := range sockets {
		if s.sessions.live() != nil || s.sessions.mayReturn() {
			s.inheritOne(x, pid)
		}
		_ = unix.Close(x.fd)
	}
}

func (s *supervisor) inheritOne(x inheritedSocket, pid int) {
	inode, err := inodeOf(x.fd)
	if err != nil || s.sockets.listener(inode) != nil {
		return
	}
	n := &notif{l: s.l}
	n.PID, n.Args[0] = uint32(pid), uint64(x.number)
	if mayBeAnnounced(x.fd) != "" {
		s.begins(n, x.fd, inode)
	} else if err := s.adopts(n, x.fd, inode); err == nil {
		s.log.Debug("an inherited listening socket is adopted")
	}
}

// program is a program that has its filter.
type program struct {
	listener  int // -1: another launcher answers its calls
	inherited []inheritedSocket
	wait      func() int // waits for its end, and returns the exit status
	end       func()     // releases what the wait needs; may be nil
	pid       int
	// root is the program if this process is not its ancestor, and from the last process id that
	// had been given before it had its filter.
	root, from int
}

// close releases what p has, except the listener.
func (p *program) close() {
	for _, x := range p.inherited {
		_ = unix.Close(x.fd)
	}
	if p.end != nil {
		p.end()
	}
}

// discard closes the descriptors of a program that does not run.
func (p *program) discard() {
	if p.listener >= 0 {
		_ = unix.Close(p.listener)
	}
	for _, x := range p.inherited {
		_ = unix.Close(x.fd)
	}
}
