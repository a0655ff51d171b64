// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// connect and close have no flag by which they never wait. connect goes by
// O_NONBLOCK, which belongs to the open file description and which a program can
// clear at any time; the last close of a socket goes by SO_LINGER, which a program
// can set to hours. Both, and in close also the sockets that lie in the queue of a
// unix socket. So these calls are bounded in their time and in their number: what
// waits for its turn is a goroutine.
const (
	// callTime is how long such a call may take before it is woken.
	callTime = 20 * time.Millisecond
	// maxCalls bounds the threads in connect, and those in close; maxLingering
	// those in the close of sockets that are set to linger, which others need
	// not wait behind.
	maxCalls     = 32
	maxLingering = 8
)

var (
	connecting = make(chan struct{}, maxCalls)
	closing    = make(chan struct{}, maxCalls)
	lingering  = make(chan struct{}, maxLingering)
)

// within makes a system call on this thread when there is a place for it (nil has
// any number), and calls wake, which has to end it, as often as callTime passes meanwhile.
func within(places chan struct{}, call func(), wake func(tid int)) {
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

// interrupt ends a wait of thread tid. The signal is the runtime's own and means
// nothing to whoever gets it.
func interrupt(tid int) { _ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) }

// CloseSocket closes a descriptor of a socket that programs have had, or whose
// other end they have. It takes no longer than others let it, and never as long as
// SO_LINGER says: the kernel goes on with the connection as it does when that time
// is over. A linger time of 0 makes a reset as ever.
func CloseSocket(fd int) error {
	places := closing
	if l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger != 0 {
		places = lingering
	}
	var err error
	within(places, func() { err = unix.Close(fd) }, interrupt)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("close", err)
	}
	return nil
}

// connectNow is connect without waiting for the connection, whatever the program
// makes of O_NONBLOCK, which is as before when it returns.
func connectNow(fd int, sa unix.Sockaddr) (err error) {
	within(connecting, func() {
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
	}, func(int) {
		// Somebody has cleared the flag in between: the attempt fails. A signal
		// would not do, after which the kernel begins the call anew.
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	})
	return err
}
