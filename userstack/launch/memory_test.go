// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestProtectedMemory: an answer of the launcher is not written into pages that the program may
// not write, and each call fails as it does without the launcher.
func TestProtectedMemory(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	probe(t, &fakeStack{}, "protected", addr, "smc")
	if err := probeProtected([]string{addr, "native"}); err != nil {
		t.Errorf("without a launcher: %v", err)
	}
}

// probeProtected: args are an address, and the kind of the connection.
func probeProtected(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sa); err != nil {
		return err
	}
	if err := checkConnected(fd, args[0], args[1] == "smc"); err != nil {
		return err
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem) //nolint:errcheck // the process ends soon
	want := bytes.Repeat([]byte{0x5a}, page)
	length := uint32(16)
	calls := map[string]func(at, lenAt unsafe.Pointer) unix.Errno{
		"getpeername": func(at, lenAt unsafe.Pointer) unix.Errno {
			_, _, e := unix.Syscall(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(at), uintptr(lenAt))
			return e
		},
		"getsockname": func(at, lenAt unsafe.Pointer) unix.Errno {
			_, _, e := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(at), uintptr(lenAt))
			return e
		},
		"getsockopt TCP_INFO": func(at, lenAt unsafe.Pointer) unix.Errno {
			_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(at), uintptr(lenAt), 0)
			return e
		},
		"ioctl SIOCOUTQ": func(at, _ unsafe.Pointer) unix.Errno {
			_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCOUTQ, uintptr(at))
			return e
		},
	}
	for _, prot := range []int{unix.PROT_READ, unix.PROT_READ | unix.PROT_EXEC, unix.PROT_NONE} {
		for _, at := range []struct {
			name string
			off  int
		}{{"in the page", page + 64}, {"into the page", page - 2}} {
			copy(mem[page:], want)
			if err := unix.Mprotect(mem[page:2*page], prot); err != nil {
				return err
			}
			for name, call := range calls {
				length = 16
				if e := call(unsafe.Pointer(&mem[at.off]), unsafe.Pointer(&length)); e != unix.EFAULT {
					return fmt.Errorf("%s, protection %d, %s: %w, want EFAULT", name, prot, at.name, error(e))
				}
			}
			if prot == unix.PROT_READ { // the length is there, and may be read only
				if err := unix.Mprotect(mem[page:2*page], unix.PROT_READ|unix.PROT_WRITE); err != nil {
					return err
				}
				binary.NativeEndian.PutUint32(mem[page:], 16)
				if err := unix.Mprotect(mem[page:2*page], prot); err != nil {
					return err
				}
				for _, name := range []string{"getpeername", "getsockname", "getsockopt TCP_INFO"} {
					if e := calls[name](unsafe.Pointer(&mem[0]), unsafe.Pointer(&mem[page])); e != unix.EFAULT {
						return fmt.Errorf("%s, length in a page that is read only: %w, want EFAULT", name, error(e))
					}
				}
				binary.NativeEndian.PutUint32(want, 16)
			}
			if err := unix.Mprotect(mem[page:2*page], unix.PROT_READ|unix.PROT_WRITE); err != nil {
				return err
			}
			if !bytes.Equal(mem[page:2*page], want) {
				return errors.New("a page that may not be written has changed")
			}
			binary.NativeEndian.PutUint32(want, 0x5a5a5a5a)
		}
	}
	return nil
}

// TestWritableText: the answer by the text of /proc/PID/maps, for kernels without PROCMAP_QUERY.
func TestWritableText(t *testing.T) {
	testkind.System(t)
	const maps = "1000-2000 rw-p 00000000 00:00 0\n2000-3000 r--p 00000000 00:00 0 /a file\n4000-5000 rw-p 0 00:00 0\nmalformed\n5000-6000 ---p 0 00:00 0\n"
	for _, tt := range []struct {
		addr, size uint64
		want       bool
	}{
		{0x1000, 0x1000, true}, {0x1fff, 1, true}, {0x1fff, 2, false}, {0x2000, 1, false}, {0x2fff, 1, false},
		{0x3000, 0x1000, true}, {0x3000, 0x2000, true}, {0x3000, 0x2001, false}, {0x5000, 8, false}, {0x6000, 8, true}, {0, 0x1000, true}, {0, 0x10000, false},
	} {
		if got := writableIn(maps, tt.addr, tt.size); got != tt.want {
			t.Errorf("%#x, %#x bytes: %v", tt.addr, tt.size, got)
		}
	}
	// Both ways agree about the memory of this process.
	m := memory{mem: -1}
	var err error
	if m.maps, err = unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(m.maps)
	b, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b) //nolint:errcheck // the test ends
	if err := unix.Mprotect(b[os.Getpagesize():], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int{0, os.Getpagesize() - 4, os.Getpagesize() - 3, os.Getpagesize()} {
		at := uint64(uintptr(unsafe.Pointer(&b[off])))
		text, err := m.writableText(at, 4)
		if err != nil {
			t.Fatal(err)
		}
		if asked, err := m.writable(at, 4); err != nil || asked != text || text != (off <= os.Getpagesize()-4) {
			t.Errorf("offset %d: %v by the text, %v by the query, %v", off, text, asked, err)
		}
	}
}
