// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// callTime is how long a system call may take before it is interrupted.
	callTime = 20 * time.Millisecond
	// maxCalls bounds the threads in connect, and also those in close. maxLingering
	// bounds the threads in the close of sockets with SO_LINGER, so that other closes
	// do not wait for them.
	maxCalls     = 8
	maxLingering = 4
	// queueTime is callTime for the close of a queue with descriptors of a user, for which
	// nobody needs to wait, and maxRefused bounds the goroutines in such closes.
	queueTime  = time.Millisecond
	maxRefused = 16
)

var (
	connecting = make(chan struct{}, maxCalls)
	closing    = make(chan struct{}, maxCalls)
	lingering  = make(chan struct{}, maxLingering)
	refused    = make(chan struct{}, maxRefused)
)

// Call calls call, which makes a system call, on the current thread. It first waits until
// places has room; a nil places has no limit. While the call runs, Call calls wake with the
// id of the thread every callTime. wake must interrupt the call.
func Call(places chan struct{}, call func(), wake func(tid int)) {
	if places != nil {
		places <- struct{}{}
		defer func() { <-places }()
	}
	callFor(callTime, call, wake)
}

// callFor is Call without places, and with another callTime.
func callFor(limit time.Duration, call func(), wake func(tid int)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var mu sync.Mutex
	over := false
	mu.Lock()
	var timer *time.Timer
	// No guard: wake only makes a system call.
	timer = time.AfterFunc(limit, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			wake(tid)
			timer.Reset(limit)
		}
	})
	mu.Unlock()
	defer func() { // also where call panics
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}()
	call()
}

// Interrupt interrupts a system call of thread tid, by SIGURG. The Go runtime uses this
// signal itself and ignores it if it comes at another time.
func Interrupt(tid int) { _ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) }

// Close closes a socket that programs have had, or whose other end they have. It is
// interrupted after 20 ms instead of waiting as long as SO_LINGER says: the kernel then
// continues with the connection as after the linger time. It may have to wait for other
// closes. A linger time of 0 resets the connection as usual. The error wraps a
// syscall.Errno.
func Close(fd int) error {
	places := closing
	if l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger != 0 {
		places = lingering
	}
	var err error
	Call(places, func() { err = unix.Close(fd) }, Interrupt)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("close", err)
	}
	return nil
}

// CloseAside is Close for callers that must not wait. It calls then after the close; then
// must not panic, and may be nil. It closes the socket at once if the close cannot wait. It starts a goroutine
// if SO_LINGER is set, or if the queue of a unix socket has data, which may come with
// descriptors. If one of these happens after the check, the close is interrupted.
func CloseAside(fd int, then func()) {
	if then == nil {
		then = func() {}
	}
	if mayWait(fd) {
		// No guard: then must not panic.
		go func() {
			_ = Close(fd)
			then()
		}()
		return
	}
	Call(nil, func() { _ = unix.Close(fd) }, Interrupt)
	then()
}

// mayWait reports whether a close of the socket may wait, in its current state.
func mayWait(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return true
	}
	if domain == unix.AF_UNIX {
		n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		return err != nil || n > 0
	}
	l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	return err != nil || l.Onoff != 0 && l.Linger != 0
}

// CloseConn is Close for a connection in Go's poller. It may return before the socket is
// closed. The error is that of c.Close.
func CloseConn(c interface {
	syscall.Conn
	io.Closer
}) error {
	last := -1
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			if !mayWait(int(fd)) {
				return
			}
			dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			if err == nil {
				last = dup
				return
			}
			// This process has too many open files. Without SO_LINGER the
			// kernel does at once what it does after the linger time.
			if l, err := unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Linger != 0 {
				_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
			}
		})
	}
	var err error
	Call(nil, func() { err = c.Close() }, Interrupt)
	if last >= 0 {
		go Close(last) //nolint:errcheck // the caller does not wait for the result
	}
	return err
}

// CloseQueue closes a connection of a user to a unix socket of this process, or the listener. The
// user may have sent descriptors that nobody has read. The kernel closes them now, and each close
// may take as long as its SO_LINGER says, so it is interrupted. Unlike CloseConn, it returns when
// the connection is closed, so that its cost can be given back. Nothing may read from c: then
// the reader would close it.
func CloseQueue(c io.Closer) (err error) {
	callFor(queueTime, func() { err = c.Close() }, Interrupt)
	return err
}

// CloseQueueFD is CloseQueue for a descriptor that is not in Go's poller.
func CloseQueueFD(fd int) {
	callFor(queueTime, func() { _ = unix.Close(fd) }, Interrupt)
}

// RefuseQueue is CloseQueue for a goroutine that accepts the connections of all users.
func RefuseQueue(c io.Closer) {
	select {
	case refused <- struct{}{}:
		// No guard: nothing here can panic.
		go func() {
			_ = CloseQueue(c)
			<-refused
		}()
	default:
		_ = CloseQueue(c)
	}
}

// Connect starts to connect the socket fd, and does not wait for the connection, even if
// the program clears O_NONBLOCK meanwhile. It restores this flag before it returns. The
// error is EINPROGRESS if the attempt continues, ECONNABORTED if the program has cleared the flag
// again and again, or wraps another syscall.Errno.
func Connect(fd int, sa unix.Sockaddr) (err error) {
	w := connectWake{fd: fd, begin: time.Now()}
	Call(connecting, func() {
		var flags int
		if flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil {
			err = os.NewSyscallError("fcntl F_GETFL", err)
			return
		}
		if flags&unix.O_NONBLOCK == 0 {
			// The program's thread waits in its own connect() and cannot see this.
			if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
				err = os.NewSyscallError("fcntl F_SETFL", err)
				return
			}
			defer unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) //nolint:errcheck // it was set a moment ago
		}
		err = unix.Connect(fd, sa)
	}, w.wake)
	switch {
	case w.ended:
		return os.NewSyscallError("connect", unix.ECONNABORTED)
	case errors.Is(err, unix.EALREADY), errors.Is(err, unix.EINTR):
		return unix.EINPROGRESS // the call was interrupted
	}
	return err
}

const (
	// clearedMost is how often a connect may be found waiting because O_NONBLOCK was cleared,
	// each time after callTime.
	clearedMost = 50
	// connectTime bounds a connect in any case. It is long, because a thread that gets no
	// processor on a busy machine takes long, too.
	connectTime = time.Minute
)

// connectWake wakes a connect that waits because a program has cleared O_NONBLOCK.
type connectWake struct {
	fd      int
	begin   time.Time
	cleared int  // how often the flag was found cleared
	ended   bool // the socket is shut down: whatever connect returns, there is no connection
}

// wake sets the flag again and interrupts the call of thread tid: after the signal the kernel
// restarts the call and reads the flag. If a program clears the flag again and again, wake shuts
// down the socket. A call that only takes long is not ended: its connection may exist already.
func (w *connectWake) wake(tid int) {
	if flags, err := unix.FcntlInt(uintptr(w.fd), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK == 0 {
		w.cleared++
	}
	_ = unix.SetNonblock(w.fd, true)
	Interrupt(tid)
	if w.cleared > clearedMost || time.Since(w.begin) > connectTime {
		w.ended = true
		_ = unix.Shutdown(w.fd, unix.SHUT_RDWR)
	}
}
