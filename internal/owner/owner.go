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

// Find returns the processes that have sockets of this network namespace. Of several that share one, it is that with
// the lowest number. Sockets whose processes the caller may not see are left out.
func Find(want []Socket) map[Socket]Process {
	if len(want) == 0 {
		return nil
	}
	return of(inodes(want), "/proc")
}

// inodes returns the inode numbers of sockets.
func inodes(want []Socket) map[uint32]Socket {
	wanted := make(map[Socket]bool, len(want))
	found := map[uint32]Socket{}
	for _, s := range want {
		if s.Inode != 0 {
			found[s.Inode] = s
		} else {
			wanted[s] = true
		}
	}
	if len(wanted) == 0 {
		return found
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := netlink.SocketDiagTCP(family)
		if err != nil {
			continue // a kernel without the module shows none
		}
		for _, s := range all {
			k := Socket{Local: end(s.ID.Source, s.ID.SourcePort), Remote: end(s.ID.Destination, s.ID.DestinationPort)}
			if s.INode != 0 && wanted[k] {
				found[s.INode] = k
			}
		}
	}
	return found
}

func end(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// of looks for the processes that have sockets with these inode numbers. proc is where procfs is mounted.
func of(sockets map[uint32]Socket, proc string) map[Socket]Process {
	found := map[Socket]Process{}
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
		if len(found) == len(sockets) {
			break
		}
		dir := filepath.Join(proc, strconv.Itoa(pid))
		fds, _ := os.ReadDir(filepath.Join(dir, "fd")) // of others, or it has ended
		for _, fd := range fds {
			s, ok := sockets[socketOf(filepath.Join(dir, "fd", fd.Name()))]
			if _, has := found[s]; ok && !has {
				comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
				found[s] = Process{uint32(pid), strings.TrimSuffix(string(comm), "\n")}
			}
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
