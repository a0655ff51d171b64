// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread is Elsewhere for an f that changes its thread: what it may do, or the namespaces that
// it is in. f runs on a locked thread, and reports whether it has undone that. If it has not, or
// if it panics, the thread ends.
//
// That thread is never the first one of the process. The Go runtime cannot end it, but parks it
// for good; and it is the one that /proc/PID, a pidfd and the credentials of a unix socket's peer
// show.
func OnThread(what string, f func() (restored bool)) {
	Elsewhere(what, func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			OnThread(what, f) // on another one, since this one is locked
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	})
}
