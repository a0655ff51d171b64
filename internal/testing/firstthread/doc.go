// SPDX-License-Identifier: Apache-2.0

// Package firstthread keeps the first thread of a test binary as it is. A test that becomes
// another user, or enters a namespace, does so on a locked thread, which ends with its goroutine.
// The Go runtime cannot end the first thread: it parks it, changed as it is, and it is the one
// that /proc/PID, /proc/self and pidfds show to all later tests. Tests that change threads
// import this package for its effect:
//
//	import _ "smcr/internal/testing/firstthread"
//
// Code that is not a test uses guard.OnThread.
package firstthread

import "runtime"

// The goroutine that initializes packages is the main one. It runs no test, and keeps the first
// thread.
var _ = keep()

func keep() struct{} {
	runtime.LockOSThread()
	return struct{}{}
}
