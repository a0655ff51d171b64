// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"smcr/rdmaverbs"
)

// netNS is a provider whose devices are those of one network namespace. The
// goroutine that needs a device may be on a thread that is in another one: a
// program may have stacks in several.
type netNS struct {
	rdmaverbs.Provider
	ns *os.File
}

// inThisNetNS binds p to the network namespace of the calling thread.
func inThisNetNS(p rdmaverbs.Provider) (*netNS, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("userstack: own network namespace: %w", err)
	}
	return &netNS{p, ns}, nil
}

func (n *netNS) close() { _ = n.ns.Close() }

// Open implements rdmaverbs.Provider.
func (n *netNS) Open(ctx context.Context, name string) (d rdmaverbs.Device, err error) {
	err = n.do(func() error { d, err = n.Provider.Open(ctx, name); return err })
	return d, err
}

// Devices implements rdmaverbs.Provider.
func (n *netNS) Devices(ctx context.Context) (names []string, err error) {
	err = n.do(func() error { names, err = n.Provider.Devices(ctx); return err })
	return names, err
}

// do calls f on a thread that is in the namespace. To get to another one than
// that of the process takes CAP_SYS_ADMIN.
func (n *netNS) do(f func() error) error {
	runtime.LockOSThread()
	there, err := n.here()
	if there || err != nil {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return f()
	}
	runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("userstack: enter the network namespace of the stack: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// here reports whether the calling thread is in the namespace.
func (n *netNS) here() (bool, error) {
	var own, ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, fmt.Errorf("userstack: own network namespace: %w", err)
	}
	if err := unix.Fstat(int(n.ns.Fd()), &ns); err != nil {
		return false, fmt.Errorf("userstack: network namespace of the stack: %w", err)
	}
	return own.Ino == ns.Ino && own.Dev == ns.Dev, nil
}
