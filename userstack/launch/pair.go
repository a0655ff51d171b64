// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/sockopt"
)

// pairSndbuf is SO_SNDBUF of both ends of a pair, in bytes, unless the program
// has set it. The kernel limits it to net.core.wmem_max and doubles it.
const pairSndbuf = 512 << 10

// junkLen is the size in bytes of the pieces of junk with which a pair is
// filled.
const junkLen = 256

// pair is the stream socketpair that takes the place of a TCP socket.
type pair struct {
	app    int    // the program's end; -1 after it was placed
	end    int    // the service's end, non-blocking; -1 after it was closed
	inode  uint64 // of the program's end
	junk   int    // bytes that keep the program's end unwritable
	sndbuf int    // SO_SNDBUF of the program's end when it becomes writable, in bytes
	// sndbufSet is set if the program has set that size.
	sndbufSet bool
}

// newPair makes the pair for tcp and copies socket options from tcp to the
// program's end. With clog, the program's end is not writable until drain.
func newPair(tcp int, nonblock, clog bool) (_ *pair, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	p := &pair{app: fds[0], end: fds[1], sndbuf: pairSndbuf}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(p.app, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	p.inode = st.Ino
	if err := unix.SetNonblock(p.end, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(p.app, nonblock); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.carryOptions(tcp)
	if clog {
		err = p.clog()
	} else {
		err = p.setSndbuf(p.app)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// setSndbuf sets the size of the send buffer of app, the program's end. SO_BUF_LOCK says
// afterwards what the program has set.
func (p *pair) setSndbuf(app int) error {
	err := unix.SetsockoptInt(app, unix.SOL_SOCKET, unix.SO_SNDBUF, p.sndbuf)
	if !p.sndbufSet && err == nil {
		lock, lerr := unix.GetsockoptInt(app, unix.SOL_SOCKET, soBufLock)
		if lerr == nil && lock&sndBufLockBit != 0 {
			_ = unix.SetsockoptInt(app, unix.SOL_SOCKET, soBufLock, lock&^sndBufLockBit)
		}
	}
	return err
}

// carryOptions copies the options that the program set on tcp and that have an
// effect on the socketpair. It ignores errors: an option that cannot be read
// was not set.
func (p *pair) carryOptions(tcp int) {
	for _, name := range []int{
		unix.SO_RCVTIMEO, unix.SO_SNDTIMEO, unix.SO_KEEPALIVE,
		unix.SO_LINGER, unix.SO_OOBINLINE, unix.SO_REUSEADDR, unix.SO_PRIORITY, unix.SO_BINDTOIFINDEX,
	} {
		var v [16]byte
		n, err := getRaw(tcp, unix.SOL_SOCKET, name, v[:])
		if err != nil || v == [16]byte{} {
			continue
		}
		_ = setRaw(p.app, unix.SOL_SOCKET, name, v[:n])
	}
	if lock, err := unix.GetsockoptInt(tcp, unix.SOL_SOCKET, soBufLock); err == nil {
		if lock&sndBufLockBit != 0 {
			if v, err := unix.GetsockoptInt(tcp, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
				p.sndbuf, p.sndbufSet = v/2, true
			}
		}
		if lock&rcvBufLockBit != 0 {
			if v, err := unix.GetsockoptInt(tcp, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
				_ = unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_RCVBUF, v/2)
			}
		}
	}
	_ = unix.SetsockoptInt(p.end, unix.SOL_SOCKET, unix.SO_SNDBUF, pairSndbuf)
	sockopt.ReadsOf(tcp).Set(p.app)
}

// carryAsync copies the settings for signal-driven I/O: the owner, who also
// gets SIGURG, and the signal. It sets them as the thread of call n would. If
// the program asked for the descriptor's number with the signal, it gets a
// number of the launcher.
func (p *pair) carryAsync(tcp int, n *notif) {
	var owner [2]int32 // struct f_owner_ex
	if _, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(tcp), unix.F_GETOWN_EX, uintptr(unsafe.Pointer(&owner))); e != 0 || owner[1] == 0 {
		return
	}
	if setOwner(n, p.app, owner) != nil {
		return
	}
	if sig, err := unix.FcntlInt(uintptr(tcp), unix.F_GETSIG, 0); err == nil && sig != 0 {
		_, _ = unix.FcntlInt(uintptr(p.app), unix.F_SETSIG, sig)
	}
	if f, err := unix.FcntlInt(uintptr(tcp), unix.F_GETFL, 0); err != nil || f&unix.O_ASYNC == 0 {
		return
	}
	if f, err := unix.FcntlInt(uintptr(p.app), unix.F_GETFL, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(p.app), unix.F_SETFL, f|unix.O_ASYNC)
	}
}

// clog fills the program's end with junk, so that it is not writable.
func (p *pair) clog() error {
	if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_SNDBUF", err)
	}
	var junk [junkLen]byte
	for size := len(junk); ; {
		err := unix.Sendto(p.app, junk[:size], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		switch {
		case err == nil:
			p.junk += size
		case !errors.Is(err, unix.EAGAIN):
			return os.NewSyscallError("send", err)
		case size == 1:
			return nil
		default:
			size = 1
		}
	}
}

// drain removes the junk. Then the program's end is writable. app is a
// duplicate of that end, or -1 if it was not found: then the pair works with a
// small buffer.
func (p *pair) drain(app int) error {
	if app >= 0 {
		_ = p.setSndbuf(app)
	}
	var buf [4096]byte
	for p.junk > 0 {
		n, _, err := unix.Recvfrom(p.end, buf[:min(p.junk, len(buf))], unix.MSG_DONTWAIT)
		if err != nil {
			return os.NewSyscallError("recv", err)
		}
		if n == 0 {
			return fmt.Errorf("launch: end of file in a clogged pair")
		}
		p.junk -= n
	}
	return nil
}

// hangUp closes the service's end of a clogged pair. The program's end then has
// POLLHUP and an error and is writable, as a TCP socket whose connect() failed.
// A close alone would do this in two steps, because the kernel reports the
// hang-up before it removes the junk: a program that is woken in between would
// find its end not writable. app is a duplicate of the program's end, or -1 if
// it was not found: then there are two steps.
func (p *pair) hangUp(app int) {
	if app >= 0 && p.junk > 0 {
		p.unclog(app)
	}
	p.closeEnd()
}

// unclog makes the program's end writable without waking the waiters; the close
// that follows wakes them. app is a duplicate of that end. Some junk stays
// unread, because of which the kernel reports an error at the close. If unclog
// fails, the program may see the two steps of a hang-up.
func (p *pair) unclog(app int) {
	var buf [junkLen]byte
	for size := 0; ; { // size of a piece of junk as the kernel counts it
		held, err := unix.IoctlGetInt(app, unix.SIOCOUTQ)
		if err != nil || held <= size {
			return
		}
		exact := false
		if left := held - size; size > 0 {
			// A unix socket is writable if four times its queued bytes fit into
			// its buffer. When the kernel frees a piece, it makes this check
			// while one more byte is counted. With exactly this buffer size the
			// check fails, so nobody is woken, and the socket is writable right
			// after.
			_ = unix.SetsockoptInt(app, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*(left+1))
			got, err := unix.GetsockoptInt(app, unix.SOL_SOCKET, unix.SO_SNDBUF)
			exact = err == nil && got == 4*(left+1)
		}
		n, _, err := unix.Recvfrom(p.end, buf[:], unix.MSG_DONTWAIT)
		if err != nil || n == 0 || exact {
			return
		}
		p.junk -= n
		left, err := unix.IoctlGetInt(app, unix.SIOCOUTQ)
		if err != nil {
			return
		}
		size = held - left
	}
}

// pending returns the number of bytes that the program wrote and nobody has
// read.
func (p *pair) pending() int {
	n, err := unix.IoctlGetInt(p.end, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n - p.junk
}

func (p *pair) closeApp() {
	if p.app >= 0 {
		_ = unix.Close(p.app)
		p.app = -1
	}
}

// closeEnd closes the service's end. The program, or another process to which it has passed its own
// end, can have sent sockets whose close waits.
func (p *pair) closeEnd() {
	if p.end >= 0 {
		bounded.CloseQueueFD(p.end)
		p.end = -1
	}
}

func (p *pair) close() {
	p.closeApp()
	p.closeEnd()
}

func getRaw(fd, level, name int, b []byte) (int, error) {
	n := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0, e
	}
	return min(int(n), len(b)), nil
}

func setRaw(fd, level, name int, b []byte) error {
	var p unsafe.Pointer
	if len(b) > 0 {
		p = unsafe.Pointer(&b[0])
	}
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(p), uintptr(len(b)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// pollHup reports whether the other end of the pair was closed.
func pollHup(fd int) bool { return polled(fd)&unix.POLLHUP != 0 }

// polled returns the events of fd that are always reported, now: POLLHUP and POLLERR.
func polled(fd int) int16 {
	p := []unix.PollFd{{Fd: int32(fd)}}
	if _, err := unix.Poll(p, 0); err != nil {
		return 0
	}
	return p[0].Revents
}

// uncertain reports whether the program, which has the other end, may still
// wait for data: it has not closed its end, and the service has not sent the
// end of file.
func uncertain(end int) bool {
	if pollHup(end) {
		return false
	}
	// This sends nothing. It only checks whether the end was shut down for
	// writing.
	err := unix.Sendto(end, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	return !errors.Is(err, unix.EPIPE)
}
