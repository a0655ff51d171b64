// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"os"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// stockSize is how many sockets of each address family are kept that nothing uses yet.
const stockSize = 32

// A stock has sockets of the stack's namespace ahead of need. Only their making needs the thread that is in the
// namespace, and each call to that costs more than all else of it: the sockets are made many at a time.
// A family of which nobody has wanted a socket has none.
type stock struct {
	v4, v6 chan int
	wanted chan int    // families of which there are few
	seen   map[int]int // by topUp, of each family
}

func newStock() stock {
	return stock{v4: make(chan int, stockSize), v6: make(chan int, stockSize), wanted: make(chan int, 2), seen: map[int]int{}}
}

func (s *stock) of(family int) chan int {
	if family == unix.AF_INET6 {
		return s.v6
	}
	return s.v4
}

// take returns a socket of a family, if there is one.
func (s *stock) take(family int) (fd int, ok bool) {
	of := s.of(family)
	if len(of) <= stockSize/2 {
		select {
		case s.wanted <- family:
		default: // the thread knows
		}
	}
	select {
	case fd := <-of:
		return fd, true
	default:
		return -1, false
	}
}

// topUp has the families filled of which no socket was taken since the last call: at rest, a stack has as many sockets as before. One
// goroutine calls it.
func (s *stock) topUp() {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		n := len(s.of(family))
		if n > 0 && n < stockSize && n == s.seen[family] {
			select {
			case s.wanted <- family:
			default:
			}
		}
		s.seen[family] = n
	}
}

// fill makes sockets of a family until there are enough, or no more can be made: who needs one then finds out why. It must
// run in the namespace.
func (s *stock) fill(family int) {
	for of := s.of(family); len(of) < cap(of); {
		fd, err := newSocket(family)
		if err != nil {
			return
		}
		of <- fd // only this thread adds any
	}
}

// close closes the sockets that nothing has used.
func (s *stock) close() {
	for _, of := range []chan int{s.v4, s.v6} {
		for len(of) > 0 {
			atonce.Close(<-of)
		}
	}
}

// newSocket makes a TCP socket in the network namespace of the calling thread.
func newSocket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	return fd, os.NewSyscallError("socket", err)
}

// socket returns a TCP socket of the namespace. It may be called on any thread.
func (t *thread) socket(family int) (fd int, err error) {
	if fd, ok := t.stock.take(family); ok {
		return fd, nil
	}
	err = t.do(func() (err error) { fd, err = newSocket(family); return err })
	return fd, err
}
