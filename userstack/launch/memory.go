// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is the memory of a process that waits for the answer to a call. Its descriptors stay with
// this memory when the process ends and another one gets its number. Writes by way of
// /proc/PID/mem ignore the protection of pages, so memory looks at it: where the kernel answers a
// call with EFAULT, the launcher does as well. A program that changes the protection of its pages
// meanwhile fools nobody but itself.
type memory struct {
	mem, maps  int
	start, end uint64 // of the mapping that the last query found to be writable
}

// memory opens the memory of n's process for writing. It returns an error if
// the call is over, so that a recycled thread id cannot be written to.
func (n *notif) memory() (*memory, error) {
	var m memory
	var err error
	proc := "/proc/" + strconv.Itoa(int(n.PID))
	open := func(name string, flags int) (int, error) {
		return withRoom(func() (int, error) { return unix.Open(proc+name, flags|unix.O_CLOEXEC, 0) })
	}
	if m.mem, err = open("/mem", unix.O_RDWR); err != nil {
		return nil, err
	}
	if m.maps, err = open("/maps", unix.O_RDONLY); err != nil {
		_ = unix.Close(m.mem)
		return nil, err
	}
	if !n.valid() {
		m.close()
		return nil, unix.ENOENT
	}
	return &m, nil
}

func (m *memory) close() {
	_ = unix.Close(m.mem)
	_ = unix.Close(m.maps)
}

// store writes b to address addr, all of it or, with EFAULT, perhaps a part.
func (m *memory) store(addr uint64, b []byte) error {
	ok, err := m.writable(addr, uint64(len(b)))
	if err != nil {
		return err
	}
	if !ok {
		return unix.EFAULT
	}
	if n, err := unix.Pwrite(m.mem, b, int64(addr)); err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}

// writable reports whether no page from addr to addr+size is mapped without the right to write.
// What is not mapped has no protection: the kernel fails to write there, or lets the stack grow.
func (m *memory) writable(addr, size uint64) (bool, error) {
	if m.start <= addr && addr+size <= m.end {
		return true, nil
	}
	for at := addr; at < addr+size; {
		v, err := m.mapping(at)
		switch {
		case errors.Is(err, unix.ENOTTY): // before Linux 6.11
			return m.writableText(addr, size)
		case errors.Is(err, unix.ENOENT):
			return true, nil
		case err != nil:
			return false, err
		case v.flags&vmaWritable == 0:
			return false, nil
		}
		m.start, m.end = v.start, v.end
		at = v.end
	}
	return true, nil
}

// procmapQuery is struct procmap_query of linux/fs.h, as far as the request uses it.
type procmapQuery struct {
	size, queryFlags, addr uint64
	start, end, flags      uint64
	pageSize, offset, ino  uint64
	dev                    [2]uint32
	nameSize, idSize       uint32
	name, id               uint64
}

const (
	procmapQueryRequest = 3<<30 | unsafe.Sizeof(procmapQuery{})<<16 | 'f'<<8 | 17 // PROCMAP_QUERY
	vmaWritable         = 2                                                       // PROCMAP_QUERY_VMA_WRITABLE
)

// mapping returns the mapping that covers addr, or ENOENT.
func (m *memory) mapping(addr uint64) (procmapQuery, error) {
	q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), addr: addr}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(m.maps), procmapQueryRequest, uintptr(unsafe.Pointer(&q))); e != 0 {
		return q, e
	}
	return q, nil
}

// writableText is writable by the text of /proc/PID/maps.
func (m *memory) writableText(addr, size uint64) (bool, error) {
	fd, err := unix.FcntlInt(uintptr(m.maps), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), "maps")
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil { // it shares the position of m.maps
		return false, err
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(f); err != nil {
		return false, err
	}
	return writableIn(text.String(), addr, size), nil
}

// writableIn is writable for the text of /proc/PID/maps: lines of "START-END PERMISSIONS …".
func writableIn(maps string, addr, size uint64) bool {
	for line := range strings.Lines(maps) {
		first, rest, _ := strings.Cut(line, "-")
		last, perms, _ := strings.Cut(rest, " ")
		start, err1 := strconv.ParseUint(first, 16, 64)
		end, err2 := strconv.ParseUint(last, 16, 64)
		if err1 != nil || err2 != nil || len(perms) < 2 {
			continue
		}
		if start < addr+size && addr < end && perms[1] != 'w' {
			return false
		}
	}
	return true
}
