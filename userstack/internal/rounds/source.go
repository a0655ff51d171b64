// SPDX-License-Identifier: Apache-2.0

package rounds

import (
	"syscall"
	"time"
)

// A Source tells a loop what has happened. Events are numbered from 0 on, until
// the next Poll or Sleep.
type Source interface {
	// Enter is the first call of the loop's goroutine, and what it returns the
	// last.
	Enter() (leave func())
	// Poll returns how many events there are now.
	Poll() int
	// Sleep waits until there is an event, or Wake is called or was called
	// since the last Sleep returned, and for most at most if that is positive. It
	// may return without a reason.
	Sleep(most time.Duration) int
	// Yield lets others run for a moment. The loop polls afterwards.
	Yield()
	// Handle deals with event i.
	Handle(i int)
	// Wake ends a Sleep. It does not block.
	Wake()
	// Here reports whether the caller is the loop's goroutine.
	Here() bool
	// Close frees the source. The loop has ended.
	Close()
}

// A Stream is a non-blocking stream socket that is not one of the kernel. Errors
// are those of the system calls.
type Stream interface {
	// Watch has f called in the loop with the events of the socket, as
	// epoll_ctl(2) with EPOLLET: EPOLLIN, EPOLLOUT, EPOLLRDHUP and EPOLLPRI where
	// they are asked for, and EPOLLHUP and EPOLLERR. A call may be under way when
	// stop returns.
	Watch(events uint32, f func(events uint32)) (stop func())
	// Change makes the watch one of other events, as EPOLL_CTL_MOD: those that
	// are there are told.
	Change(events uint32)
	// Recv reads into a and then b what there is, never across an urgent byte.
	// If it leaves anything else, events tell of that. 0 without an error is the
	// end of the stream.
	Recv(a, b []byte) (n int, errno syscall.Errno)
	// Send writes a and then b, as far as there is room.
	Send(a, b []byte) (n int, errno syscall.Errno)
	// Pending reports whether Recv has something to return, whether that begins
	// with an urgent byte, and whether there is nothing but plain data.
	Pending() (readable, mark, plain bool)
	// CloseWrite shuts down writing.
	CloseWrite() error
	// Close closes the socket.
	Close() error
}
