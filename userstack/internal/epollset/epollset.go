// SPDX-License-Identifier: Apache-2.0

package epollset

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// batch is how many events are taken from the set at once.
const batch = 64

// Set is an epoll set with the goroutine that reads it.
type Set struct {
	file *os.File
	raw  syscall.RawConn
	num  int
	wg   sync.WaitGroup
}

// Open makes a set and starts its goroutine, which calls tell with the data of the
// descriptors that have events. The slice has at least one entry, and is valid until tell
// returns. g handles panics in tell; with nil, a panic ends the process. The error wraps a
// syscall.Errno.
func Open(g *guard.Guard, tell func(data []uint64)) (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // the runtime's poller needs it
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl F_SETFL", err)
	}
	s := &Set{file: os.NewFile(uintptr(fd), "epoll"), num: fd}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, err
	}
	s.wg.Go(func() {
		var events [batch]unix.EpollEvent
		var data [batch]uint64
		_ = s.raw.Read(func(set uintptr) bool { // until Close
			// Read all events: the poller reports only the first one.
			for {
				n, err := unix.EpollWait(int(set), events[:], 0)
				if err == unix.EINTR {
					continue
				}
				if err != nil || n == 0 {
					return false
				}
				for i, ev := range events[:n] {
					data[i] = uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
				}
				if g == nil {
					tell(data[:n])
				} else {
					_ = g.Do("the events of sockets", func() { tell(data[:n]) })
				}
			}
		})
	})
	return s, nil
}

// Add watches fd for events, which are those of epoll_ctl(2). tell gets data for fd. The
// error wraps a syscall.Errno.
func (s *Set) Add(fd int, events uint32, data uint64) error {
	return s.control(unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(uint32(data)), Pad: int32(data >> 32)})
}

// Remove ends the watch of fd.
func (s *Set) Remove(fd int) error { return s.control(unix.EPOLL_CTL_DEL, fd, nil) }

func (s *Set) control(op, fd int, ev *unix.EpollEvent) error {
	var err error
	if cerr := s.raw.Control(func(set uintptr) { err = unix.EpollCtl(int(set), op, fd, ev) }); cerr != nil {
		return cerr
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// Num is the number of the set's descriptor, for its fdinfo.
func (s *Set) Num() int { return s.num }

// Close ends the goroutine and waits for it. tell is not called afterwards.
func (s *Set) Close() error {
	err := s.file.Close()
	s.wg.Wait()
	return err
}
