// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// NetNS is a reference to a network namespace, in which functions can be called
// from any thread: a program may have stacks in several namespaces.
type NetNS struct {
	ns *os.File
}

// OpenNetNS returns the network namespace of the calling thread. Close ends the
// reference.
func OpenNetNS() (*NetNS, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("network: own network namespace: %w", err)
	}
	return &NetNS{ns}, nil
}

// Close ends the reference to the namespace.
func (n *NetNS) Close() error { return n.ns.Close() }

// Do calls f on a thread that is in the namespace, and returns its error. If the
// calling thread is in another one, Do needs CAP_SYS_ADMIN.
func (n *NetNS) Do(f func() error) error {
	runtime.LockOSThread()
	inside, err := n.isCurrent()
	if inside || err != nil {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return f()
	}
	runtime.UnlockOSThread()
	guard.OnThread("a call in the network namespace of the stack", func() (restored bool) {
		if err = unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("network: enter the network namespace of the stack: %w", err)
			return false
		}
		err = f()
		return false
	})
	return err
}

// isCurrent reports whether the calling thread is in the namespace.
func (n *NetNS) isCurrent() (bool, error) {
	var own, ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, fmt.Errorf("network: own network namespace: %w", err)
	}
	if err := unix.Fstat(int(n.ns.Fd()), &ns); err != nil {
		return false, fmt.Errorf("network: network namespace of the stack: %w", err)
	}
	return own.Ino == ns.Ino && own.Dev == ns.Dev, nil
}
