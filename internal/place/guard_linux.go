// SPDX-License-Identifier: Apache-2.0

package place

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The lock is a file, and root can remove the directory that it is in. The next stack would make
// both again and have a second lock. So a stack at the place of root also binds an abstract unix
// socket, which belongs to the network namespace and which only the end of the process removes. Its
// name says which process that is, and below which directory its place is. Nobody can connect
// to it, and it is not a lock: other users can bind such names too, and theirs do not count.
//
// Containers can share a network namespace and have a /run each. So the name also says how the directory is called: of two with the same
// name, only one can have the stack.

// UnitUser is the name of the user as whom the stack of the systemd unit runs.
const UnitUser = "smcr"

// A LostError means that a stack runs whose directory was removed, or is in another mount namespace, so that no program finds it here.
// A second stack would use the same addresses.
type LostError struct {
	PID int    // of the stack that runs, in its PID namespace
	Dir string // that was removed
	// Elsewhere reports whether the directory of that name was not removed, but is another one than that of this process. Apart
	// reports whether PID is of another PID namespace.
	Elsewhere, Apart bool
}

// Error says what is wrong and what to do.
func (e *LostError) Error() string {
	if e.Elsewhere {
		where := ""
		if e.Apart {
			where = " of another PID namespace, as of a container or of the host"
		}
		return fmt.Sprintf("the stack of this network namespace is process %d%s, and its %s is not the one here: "+
			"mount that directory here, so that programs find the stack, or end it", e.PID, where, filepath.Dir(e.Dir))
	}
	return fmt.Sprintf("the stack of this network namespace is process %d, but its directory %s was removed, so programs do not find it: "+
		"restart it ('systemctl restart smcr', or 'kill %[1]d')", e.PID, e.Dir)
}

// guardName begins the names of all of these sockets.
const guardName = "\x00smcr.stack/"

// guardPrefix begins the names of the sockets of the stacks whose place is below base.
func guardPrefix(base string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(base, &st); err != nil {
		return "", fmt.Errorf("%s: %w", base, err)
	}
	return fmt.Sprintf(guardName+"%d/%d/", st.Dev, st.Ino), nil
}

// guardSuffix ends the names of the sockets of the stacks whose place is below a directory with this name, whichever that is.
func guardSuffix(base string) string {
	h := fnv.New32a()
	h.Write([]byte(base)) //nolint:errcheck // it never fails
	return fmt.Sprintf("/%08x", h.Sum32())
}

// bindGuard binds the socket of the process me.
func bindGuard(prefix, suffix string, me holder) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "guard")
	name := fmt.Sprintf("%s%d/%d/%d/%d%s", prefix, me.pid, me.start, me.pidns, me.timens, suffix)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name[1:]}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind: %w", err), f.Close())
	}
	return f, nil
}

// lost returns a *LostError if a living process, other than this one, has bound such a socket of a stack whose place is below base, or
// below another directory of that name, and if its user may be a stack's. It returns nil if there is none, or if the kernel does not say it.
func (v *view) lost(base string) error {
	prefix, err := guardPrefix(base)
	if err != nil {
		return nil
	}
	me, err := self()
	if err != nil {
		return nil
	}
	all, err := unixSockets()
	if err != nil {
		return nil
	}
	suffix, users := guardSuffix(base), v.stackUsers()
	for _, s := range all {
		rest, same := strings.CutPrefix(string(s.name), prefix)
		if !same {
			var of, dir uint64
			if n, _ := fmt.Sscanf(string(s.name), guardName+"%d/%d/", &of, &dir); n != 2 || !strings.HasSuffix(string(s.name), suffix) {
				continue
			}
			rest = strings.TrimPrefix(string(s.name), fmt.Sprintf(guardName+"%d/%d/", of, dir))
		}
		var h holder
		n, err := fmt.Sscanf(rest, "%d/%d/%d/%d", &h.pid, &h.start, &h.pidns, &h.timens)
		if err != nil || n != 4 || !slices.Contains(users, s.uid) || h == me || h.dead(me) {
			continue
		}
		return &LostError{PID: int(h.pid), Dir: v.dir(base), Elsewhere: !same, Apart: h.pidns != me.pidns}
	}
	return nil
}

// stackUsers returns the users whose stack can have the place of root.
func (v *view) stackUsers() []uint32 {
	all := []uint32{0, v.uid}
	if u, err := user.Lookup(UnitUser); err == nil {
		if id, err := strconv.ParseUint(u.Uid, 10, 32); err == nil {
			all = append(all, uint32(id))
		}
	}
	return all
}

// guard binds the socket of this claim. A system without such sockets has no guard.
func (c *Claim) guard() error {
	if c.base != c.view.root {
		return nil
	}
	prefix, err := guardPrefix(c.base)
	if err != nil {
		return err
	}
	if me, err := self(); err == nil {
		c.guarded, _ = bindGuard(prefix, guardSuffix(c.base), me)
	}
	return nil
}

// alone is guard for a claim that has not inherited the place: it returns a *LostError if another
// stack has such a socket, too. Of two stacks that do this at the same time, one at most stays, because
// each binds its own first.
func (c *Claim) alone() error {
	if err := c.guard(); err != nil || c.guarded == nil {
		return err
	}
	return c.view.lost(c.base)
}

// unguard ends what guard has begun.
func (c *Claim) unguard() {
	if c.guarded != nil {
		_ = c.guarded.Close()
		c.guarded = nil
	}
}

// Lost returns a *LostError if a stack of this network namespace runs and nobody finds it here, because
// its directory was removed or is another one, and else nil.
func Lost() error {
	v, err := current()
	if err != nil || v.listened(v.root) {
		return nil
	}
	return v.lost(v.root)
}

// A unixSocket is what unix_diag says about a socket.
type unixSocket struct {
	name []byte // of an abstract socket, it begins with a zero byte
	uid  uint32 // who has made it
}

// Numbers of linux/unix_diag.h.
const (
	udiagShowName = 0x01
	udiagShowUID  = 0x40
	unixDiagName  = 0
	unixDiagUID   = 7
	// unixDiagReq and unixDiagMsg are sizes in bytes.
	unixDiagReq = 24
	unixDiagMsg = 16
	// allStates asks for sockets in any state.
	allStates = 0xffffffff
)

// unixSockets returns the unix sockets of this network namespace that have a name.
func unixSockets() (all []unixSocket, err error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	defer c.Close()
	req := make([]byte, unixDiagReq)
	req[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(req[4:], allStates)
	binary.NativeEndian.PutUint32(req[12:], udiagShowName|udiagShowUID)
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
		Data:   req,
	})
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	for _, m := range answers {
		if len(m.Data) < unixDiagMsg {
			return nil, fmt.Errorf("sock_diag: %w: %d bytes", syscall.EBADMSG, len(m.Data))
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[unixDiagMsg:])
		if err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		s, known := unixSocket{}, false
		for ad.Next() {
			switch ad.Type() {
			case unixDiagName:
				s.name = ad.Bytes()
			case unixDiagUID:
				s.uid, known = ad.Uint32(), true
			}
		}
		if err := ad.Err(); err != nil {
			return nil, fmt.Errorf("sock_diag: %w", err)
		}
		if known && len(s.name) > 0 {
			all = append(all, s)
		}
	}
	return all, nil
}
