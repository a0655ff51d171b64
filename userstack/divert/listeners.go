// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/quota"
)

// A socket has the cgroup of its creation. A listening one that a program was started with, as by a service manager, has that of
// who has made it. So the program hands it over ([Diverter.Listen]), and the stack notes in the socket itself whose it is
// (BPF_MAP_TYPE_SK_STORAGE): by that, the eBPF programs know the listener of a SYN-ACK. A cookie would not do, because they
// see that of the request only.
//
//	ends            | then
//	----------------+----------------------------------------------------------------------------
//	the socket      | so does the note, which is memory of it: nothing is to be swept, and nobody
//	                | can fill a table
//	the attachment  | the note does not count: the socket is one of another cgroup again. Each
//	                | program that is started with it hands it over anew
//	the stack       | its filters, or those of the next one, keep the map as long as there are any

// An Owner is the program to which the connections of a listening socket count.
type Owner struct {
	// Cgroup is the attached cgroup that it is in or below, and UID its user.
	Cgroup uint64
	UID    uint32
}

// ownersMost is how many there are of a listening socket, as in bpf/maps.h: of programs that run at the same time.
const ownersMost = len(bpfOwners{}.Of)

// listenedMost is how many listening sockets are remembered for listings, and listenedUser how many of one user. The oldest one of a
// user who has too many is forgotten, and if there are too many in all, that of the user with the most.
const (
	listenedMost = 4096
	listenedUser = listenedMost / 8
)

// Listen has the connections of a listening TCP socket count to a program that was started with it: they announce as those of
// o.Cgroup do. fd is a descriptor of the socket, which the caller may close afterwards. The error matches unix.EINVAL
// for another file, and unix.EPROTONOSUPPORT for a socket of MPTCP, which stays TCP.
func (d *Diverter) Listen(fd int, o Owner) error {
	cookie, err := listening(fd)
	if err != nil {
		return fmt.Errorf("divert: a listening socket: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.attached[o.Cgroup] {
		return fmt.Errorf("divert: a listening socket of cgroup %d, which is not attached: %w", o.Cgroup, unix.ENOENT)
	}
	var all bpfOwners
	if err := ignored(d.bpf.Listeners.Lookup(int32(fd), &all), ebpf.ErrKeyNotExist); err != nil {
		return fmt.Errorf("divert: a listening socket: %w", err)
	}
	next := []Owner{o}
	for _, of := range all.Of {
		if is := (Owner{of.Cgroup, of.Uid}); is.Cgroup != o.Cgroup && d.attached[is.Cgroup] && len(next) < ownersMost {
			next = append(next, is)
		}
	}
	all = bpfOwners{}
	for i, is := range next {
		all.Of[i].Cgroup, all.Of[i].Uid = is.Cgroup, is.UID
	}
	if err := d.bpf.Listeners.Put(int32(fd), all); err != nil {
		return fmt.Errorf("divert: a listening socket: %w", err)
	}
	d.noteListener(listened{cookie, next})
	return nil
}

// noteListener remembers a listening socket, which may be known. mu is held.
func (d *Diverter) noteListener(l listened) {
	d.listened = slices.DeleteFunc(d.listened, func(o listened) bool { return o.cookie == l.cookie })
	users := map[uint32]int{}
	for _, o := range d.listened {
		users[o.account()]++
	}
	who := l.account()
	full, mine := len(d.listened) >= listenedMost, who != 0 && users[who] >= listenedUser
	if full && !mine {
		for u, n := range users {
			if n > users[who] || n == users[who] && u < who {
				who = u
			}
		}
	}
	if full || mine {
		i := slices.IndexFunc(d.listened, func(o listened) bool { return o.account() == who })
		d.listened = slices.Delete(d.listened, i, i+1)
	}
	d.listened = append(d.listened, l)
}

// listened is a socket of Listen.
type listened struct {
	cookie uint64
	owners []Owner // the latest one first
}

// account is who answers for the socket.
func (l listened) account() uint32 { return quota.Account(l.owners[0].UID) }

// Listeners returns the sockets of Listen by their cookies. One may have been closed.
func (d *Diverter) Listeners() map[uint64]Owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[uint64]Owner{}
	for _, l := range d.listened {
		if i := slices.IndexFunc(l.owners, func(o Owner) bool { return d.attached[o.Cgroup] }); i >= 0 {
			all[l.cookie] = l.owners[i]
		}
	}
	return all
}

// forgetListeners forgets the sockets that are of no attached cgroup any more. mu is held.
func (d *Diverter) forgetListeners() {
	d.listened = slices.DeleteFunc(d.listened, func(l listened) bool {
		return !slices.ContainsFunc(l.owners, func(o Owner) bool { return d.attached[o.Cgroup] })
	})
}

// listening returns the cookie of a listening TCP socket. Of these calls, none waits for the lock of the socket, which its
// program may keep.
func listening(fd int) (cookie uint64, err error) {
	for _, o := range []struct {
		option int
		values []int
	}{
		{unix.SO_DOMAIN, []int{unix.AF_INET, unix.AF_INET6}},
		{unix.SO_ACCEPTCONN, []int{1}},
		{unix.SO_PROTOCOL, []int{unix.IPPROTO_TCP, unix.IPPROTO_MPTCP}},
	} {
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.option)
		switch {
		case errors.Is(err, unix.ENOTSOCK), err == nil && !slices.Contains(o.values, v):
			return 0, unix.EINVAL
		case err != nil:
			return 0, err
		case v == unix.IPPROTO_MPTCP && o.option == unix.SO_PROTOCOL:
			return 0, unix.EPROTONOSUPPORT // its connections are of a socket in the kernel that nobody has
		}
	}
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
}
