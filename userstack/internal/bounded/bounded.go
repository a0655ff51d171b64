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
	// callTime is how long such a call may take before it is woken.
	callTime = 20 * time.Millisecond
	// maxCalls bounds the threads in connect, and those in close; maxLingering
	// those in the close of sockets that are set to linger, which others need
	// not wait behind.
	maxCalls     = 8
	maxLingering = 4
)

var (
	connecting = make(chan struct{}, maxCalls)
	closing    = make(chan struct{}, maxCalls)
	lingering  = make(chan struct{}, maxLingering)
)

// Call makes a system call on this thread when there is a place for it (nil has
// any number), and calls wake, which has to end it, as often as callTime passes meanwhile.
func Call(places chan struct{}, call func(), wake func(tid int)) {
	if places != nil {
		places <- struct{}{}
		defer func() { <-places }()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var mu sync.Mutex
	over := false
	mu.Lock()
	var timer *time.Timer
	timer = time.AfterFunc(callTime, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			wake(tid)
			timer.Reset(callTime)
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

// Interrupt ends a wait of thread tid. The signal is the runtime's own and means
// nothing to whoever gets it.
func Interrupt(tid int) { _ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) }

// Close closes a descriptor of a socket that programs have had, or whose
// other end they have. It takes no longer than others let it, and never as long as
// SO_LINGER says: the kernel goes on with the connection as it does when that time
// is over. A linger time of 0 makes a reset as ever.
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

// CloseAside is Close where nobody may wait, and calls then after it, which may be nil.
// A close that has nothing to wait for is made on this thread, and takes a goroutine
// only if there is something: SO_LINGER, or data in the queue of a unix socket, which
// may have descriptors with it. If that comes in between, the close is woken.
func CloseAside(fd int, then func()) {
	if then == nil {
		then = func() {}
	}
	if mayWait(fd) {
		go func() {
			_ = Close(fd)
			then()
		}()
		return
	}
	Call(nil, func() { _ = unix.Close(fd) }, Interrupt)
	then()
}

// mayWait reports whether the close of a socket may wait for somebody, as it is now.
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

// CloseConn is Close for a connection in Go's poller. It does not wait for the
// descriptor to be closed.
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
			// There are no descriptors left. The kernel does the same after the
			// linger time as without one.
			if l, err := unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Linger != 0 {
				_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
			}
		})
	}
	var err error
	Call(nil, func() { err = c.Close() }, Interrupt)
	if last >= 0 {
		go Close(last) //nolint:errcheck // nobody is left to be told
	}
	return err
}

// Connect is connect without waiting for the connection, whatever the program
// makes of O_NONBLOCK, which is as before when it returns.
func Connect(fd int, sa unix.Sockaddr) (err error) {
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
	}, wakeConnect(fd))
	if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINTR) {
		return unix.EINPROGRESS // it was woken
	}
	return err
}

// connectTime is how long a connect is only woken, which does no harm to one that
// is just slow because the machine is.
const connectTime = time.Second

// wakeConnect ends a connect that waits since somebody has cleared O_NONBLOCK: the
// kernel begins the call anew after a signal, and looks at the flag again. Against
// one who clears it all the time the attempt is given up.
func wakeConnect(fd int) func(tid int) {
	begin := time.Now()
	return func(tid int) {
		_ = unix.SetNonblock(fd, true)
		Interrupt(tid)
		if time.Since(begin) > connectTime {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		}
	}
}
