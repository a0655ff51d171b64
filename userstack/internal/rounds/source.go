// SPDX-License-Identifier: Apache-2.0

package rounds

import (
	"syscall"
	"time"
)

// A Source tells a loop what has happened. Events are numbered from 0 on, until
// the next Poll or Sleep.
type Source interface {
	// Enter is the first call that the loop's goroutine makes. The function that it
	// returns is the last one.
	Enter() (leave func())
	// Poll returns how many events there are now.
	Poll() int
	// Sleep waits until there is an event, or until Wake is called, or returns at once
	// if Wake was called since the last Sleep. If most is positive, Sleep waits for this
	// time at most. It may also return earlier without a reason. It returns the number
	// of events.
	Sleep(most time.Duration) int
	// Yield lets other threads run for a moment.
	Yield()
	// Handle calls the function that is watching event i.
	Handle(i int)
	// Wake ends a Sleep. It does not block.
	Wake()
	// Here reports whether the caller is the loop's goroutine.
	Here() bool
	// Close releases the resources of the source, after the loop has ended.
	Close()
}

// A Stream is a simulated non-blocking stream socket. Its methods return the errors of the
// corresponding system calls.
type Stream interface {
	// Watch makes the loop call f with the events of the socket, like epoll_ctl(2) with
	// EPOLLET: EPOLLIN, EPOLLOUT, EPOLLRDHUP and EPOLLPRI if they are in events, and
	// always EPOLLHUP and EPOLLERR. A call of f may still be running when stop returns.
	Watch(events uint32, f func(events uint32)) (stop func())
	// Change replaces the events that are watched, like EPOLL_CTL_MOD. If one of the new
	// events is true already, it is reported.
	Change(events uint32)
	// Recv reads the available bytes into a and then b, but never past an urgent byte.
	// If more can be read afterwards, an event reports it. At the end of the stream n
	// and the error are 0.
	Recv(a, b []byte) (n int, errno syscall.Errno)
	// Send writes a and then b, as far as there is room.
	Send(a, b []byte) (n int, errno syscall.Errno)
	// Pending reports whether Recv would return data, the end of the stream or an error
	// (readable), whether the next byte is urgent (mark), and whether there is only data
	// without urgent bytes, end or error (plain).
	Pending() (readable, mark, plain bool)
	// Peek returns what Recv of one byte would return, and leaves it: n is 0 or 1.
	Peek() (n int, errno syscall.Errno)
	// HungUp reports whether both sides have ended their streams, or the connection was reset (up), and whether an
	// error of it was not reported yet (failed).
	HungUp() (up, failed bool)
	// CloseWrite shuts down writing.
	CloseWrite() error
	// Close closes the socket.
	Close() error
}
