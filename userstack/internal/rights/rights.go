// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// Rights are capabilities, a bit for each, as CapEff in /proc/PID/status. They
// are those over the network namespace of the launcher and the service: a
// process of another user namespace has none, whatever CapEff says.
type Rights uint64

// All contains all capabilities: with it, Do takes none away.
const All = ^Rights(0)

// Of returns the effective rights of task, a thread id or "self" under /proc. It returns
// none if task cannot be looked at. The caller must make sure that the id still belongs to
// the same thread.
func Of(task string) Rights {
	theirs, err := userns(task)
	if err != nil {
		return 0
	}
	ours, err := userns("thread-self")
	if err != nil || ours != theirs {
		return 0
	}
	return capsOf(task, "CapEff:")
}

// capsOf returns the set of capabilities that the status of task calls key.
func capsOf(task, key string) Rights {
	b, err := os.ReadFile("/proc/" + task + "/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
			caps, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 16, 64)
			if err != nil {
				return 0
			}
			return Rights(caps)
		}
	}
	return 0
}

// nsID tells namespaces apart.
type nsID struct{ dev, ino uint64 }

func userns(task string) (nsID, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+task+"/ns/user", &st); err != nil {
		return nsID{}, err
	}
	return nsID{uint64(st.Dev), st.Ino}, nil
}

// sharesUserns reports whether task is in the user namespace of this process. A service
// that has fewer capabilities than task may not read the namespaces of task, but may read
// its uid_map and gid_map. These differ between two namespaces, unless a process with all
// rights has mapped every user of a namespace to itself.
func sharesUserns(task string) bool {
	theirs, err := userns(task)
	if err == nil {
		ours, err := userns("thread-self")
		return err == nil && ours == theirs
	}
	if !errors.Is(err, unix.EACCES) {
		return false
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		theirs, err := os.ReadFile("/proc/" + task + "/" + name)
		if err != nil {
			return false
		}
		ours, err := os.ReadFile("/proc/thread-self/" + name)
		if err != nil || !bytes.Equal(ours, theirs) {
			return false
		}
	}
	return true
}

// errRights means that a thread could not be made to act with fewer rights.
var errRights = errors.New("rights: cannot act with the program's capabilities")

// Do calls f on a thread whose effective capabilities are those of the caller that are also
// in r. It returns the error of f, or one that wraps EPERM if the capabilities could not be
// changed.
func (r Rights) Do(f func() error) error {
	return OnThread(func() (error, bool) { return r.do(f) })
}

// OnThread calls f on a locked thread in a new goroutine, and returns the error of f. f may
// change the identity or capabilities of the thread. If it returns restored false, the
// thread ends with that goroutine.
func OnThread(f func() (err error, restored bool)) error {
	var err error
	guard.OnThread("a call with the rights of a program", func() (restored bool) {
		err, restored = f()
		return restored
	})
	return err
}

// do is Do on the calling thread. restored is false if the thread did not get its effective
// capabilities back. do leaves the permitted capabilities unchanged, because they are needed
// to get the effective ones back.
func (r Rights) do(f func() error) (err error, restored bool) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var own [2]unix.CapUserData
	if err := unix.Capget(&h, &own[0]); err != nil {
		return fmt.Errorf("%w: capget: %w: %w", errRights, err, unix.EPERM), true
	}
	less := own
	less[0].Effective &= uint32(r)
	less[1].Effective &= uint32(r >> 32)
	if less == own {
		return f(), true
	}
	if err := unix.Capset(&h, &less[0]); err != nil {
		return fmt.Errorf("%w: capset: %w: %w", errRights, err, unix.EPERM), true
	}
	err = f()
	return err, unix.Capset(&h, &own[0]) == nil
}

// OwnsNetwork reports whether the network namespace of this process belongs to a user
// namespace below its own. The creator of that user namespace has all rights over it
// without any capability, so Do has no effect there.
var OwnsNetwork = sync.OnceValue(func() bool {
	netns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return true
	}
	defer netns.Close()
	// The kernel returns EPERM for a user namespace that is neither the same nor below.
	fd, err := unix.IoctlRetInt(int(netns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return !errors.Is(err, unix.EPERM)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return true
	}
	ours, err := userns("thread-self")
	return err != nil || ours != nsID{uint64(st.Dev), st.Ino}
})

// Permitted returns the permitted rights of process pid, or none if the process cannot be
// looked at. The effective rights of its threads can change at any time, see Do. The caller
// must make sure that pid still belongs to the same process.
func Permitted(pid int) Rights {
	task := strconv.Itoa(pid)
	if !sharesUserns(task) {
		return 0
	}
	return capsOf(task, "CapPrm:")
}
