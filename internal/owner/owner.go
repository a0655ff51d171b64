// SPDX-License-Identifier: Apache-2.0

package owner

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Socket is a TCP socket: a connected one by its addresses, any by the number of its inode. IPv4 addresses are not IPv4-mapped.
type Socket struct {
	Local, Remote netip.AddrPort
	Inode         uint32 // or 0
}

// A Process has a socket.
type Process struct {
	PID     uint32
	Command string // as /proc/PID/comm has it
}

// A Lookup says which process has a socket, or false if none has it that its caller may see. Of several that share one,
// it is that with the lowest number.
type Lookup func(Socket) (Process, bool)

// Read looks for the processes that have TCP sockets of this network namespace.
func Read() Lookup {
	inodes := sockets()
	found := processes(inodes, "/proc")
	return func(s Socket) (Process, bool) {
		n := s.Inode
		if n == 0 {
			n = inodes[s]
		}
		p, ok := found[n]
		return p, ok
	}
}

// sockets returns the inode numbers of the TCP sockets that a process has.
func sockets() map[Socket]uint32 {
	inodes := map[Socket]uint32{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := netlink.SocketDiagTCP(family)
		if err != nil {
			continue // a kernel without the module shows none
		}
		for _, s := range all {
			if s.INode != 0 {
				inodes[Socket{Local: end(s.ID.Source, s.ID.SourcePort), Remote: end(s.ID.Destination, s.ID.DestinationPort)}] = s.INode
			}
		}
	}
	return inodes
}

func end(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// processes looks for the processes that have sockets with these inode numbers. proc is where procfs is mounted.
func processes(sockets map[Socket]uint32, proc string) map[uint32]Process {
	wanted := make(map[uint32]bool, len(sockets))
	for _, n := range sockets {
		wanted[n] = true
	}
	found := map[uint32]Process{}
	entries, err := os.ReadDir(proc)
	if err != nil || len(sockets) == 0 {
		return found
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		fds, _ := os.ReadDir(filepath.Join(dir, "fd")) // of others, or it has ended
		for _, fd := range fds {
			n := socketOf(filepath.Join(dir, "fd", fd.Name()))
			if _, has := found[n]; has || !wanted[n] {
				continue
			}
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			found[n] = Process{uint32(pid), strings.TrimSuffix(string(comm), "\n")}
		}
	}
	return found
}

// socketOf returns the inode number of a socket, or 0 for another descriptor.
func socketOf(fd string) uint32 {
	to, err := os.Readlink(fd)
	if err != nil {
		return 0
	}
	rest, ok := strings.CutPrefix(to, "socket:[")
	n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 32)
	if !ok || err != nil {
		return 0
	}
	return uint32(n)
}
