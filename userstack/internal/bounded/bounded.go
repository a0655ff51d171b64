// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// queueTime is how long a system call that closes descriptors of a user may take before it
	// is interrupted. Nobody needs to wait for these. maxRefused bounds the goroutines in
	// RefuseQueue.
	queueTime  = time.Millisecond
	maxRefused = 16
)

var refused = make(chan struct{}, maxRefused)

// interrupted calls call, which makes a system call, on the current thread. It interrupts the
// system call each queueTime, by SIGURG. The Go runtime uses this signal itself and ignores it
// if it comes at another time.
func interrupted(call func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var mu sync.Mutex
	over := false
	mu.Lock()
	var timer *time.Timer
	// No guard: it only makes a system call.
	timer = time.AfterFunc(queueTime, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			timer.Reset(queueTime)
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

// Receive calls a function that receives messages which may have descriptors: the kernel closes
// those for which the call has no room. Such a close is interrupted.
func Receive(call func()) { interrupted(call) }

// CloseQueue closes a connection of a user to a unix socket of this process, or the listener. The
// user may have sent descriptors that nobody has read. The kernel closes them now, and each close
// may take as long as its SO_LINGER says, so it is interrupted. It returns when the connection is
// closed, so that its cost can be given back. Nothing may read from c: then the reader would close
// it.
func CloseQueue(c io.Closer) (err error) {
	interrupted(func() { err = c.Close() })
	return err
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
