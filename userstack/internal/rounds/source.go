// SPDX-License-Identifier: Apache-2.0

package rounds

import "syscall"

// A Source tells a loop what has happened. Events are numbered from 0 on, until
// the next Poll or Sleep.
type Source interface {
	// Enter is the first call of the loop's goroutine, and what it returns the
	// last.
	Enter() (leave func())
	// Poll returns how many events there are now.
	Poll() int
	// Sleep waits until there is an event, or Wake is called or was called
	// since the last Sleep returned. It may return without a reason.
	Sleep() int
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
	// Watch has f called in the loop with the events of the socket, those of
	// edge-triggered epoll: EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR and
	// EPOLLPRI. A call may be under way when stop returns.
	Watch(f func(events uint32)) (stop func())
	// Recv reads what there is, never across an urgent byte. 0 without an
	// error is the end of the stream.
	Recv(b []byte) (n int, errno syscall.Errno)
	// Send writes a and then b, as far as there is room.
	Send(a, b []byte) (n int, errno syscall.Errno)
	// Pending reports whether Recv has something to return, and whether that
	// begins with an urgent byte.
	Pending() (readable, mark bool)
	// CloseWrite shuts down writing.
	CloseWrite() error
	// Close closes the socket.
	Close() error
}
