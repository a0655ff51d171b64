// SPDX-License-Identifier: Apache-2.0

// Package atonce makes system calls that wait for nothing and nobody, and of which each connection needs some. Go's scheduler is not told
// of them. It takes the processor away from a goroutine that is in a call for more than 20 µs, as one that sends a packet and has the kernel
// deliver it is: another thread has to be woken then, its own has to ask for a processor again, and a thread of Go looks every 20 µs
// whether there is such a call. All of that costs more than the call.
//
// A descriptor must not block. Errors are syscall.Errno.
package atonce
