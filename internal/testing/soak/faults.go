// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// fault is something that disturbs the traffic of a soak. A new one is a line of
// [soakRun.faults].
type fault struct {
	name string
	// make does it, and undoes it before it returns, also if ctx is done.
	make func(ctx context.Context) error
	// ends: open connections may end. refuses: connections may not be made.
	ends, refuses bool
}

// after returns how long after a fault its failures may be seen: a peer takes some seconds
// to find out that a stack has ended, and a program that waits takes some more.
func (f *fault) after() time.Duration {
	if f.ends {
		return 15 * time.Second
	}
	return 3 * time.Second
}

// memoryLimit is --max-memory of the stacks in bytes: some hundred connections.
const memoryLimit = 160 << 20

// beyondMemory is a number of connections for which the memory does not suffice.
const beyondMemory = 500

// survivable is how long a stack may be stopped so that its peers do not give up its links:
// less than the time of all retries of a packet (see "A local ACK timeout of 17" in
// docs/architecture.md).
const survivable = 2 * time.Second

// faults returns all faults.
func (s *soakRun) faults() []fault {
	list := []fault{
		{name: "device down and up", make: s.flap, refuses: true},
		{name: "all devices of a host down and up", make: s.unplug, ends: true, refuses: true},
		{name: "address removed and back", make: s.moveAddress, refuses: true},
		{name: "packet loss", make: s.loss},
		{name: "stack killed and restarted", make: s.killStack, ends: true, refuses: true},
		{name: "stack ended and restarted", make: s.endStack, ends: true, refuses: true},
		{name: "stack stopped for up to 2 s", make: func(ctx context.Context) error {
			return s.stop(ctx, s.stackOf(s.host()).Pid(), s.between(time.Second/2, survivable))
		}},
		{name: "stack stopped for 3 to 10 s", ends: true, refuses: true, make: func(ctx context.Context) error {
			return s.stop(ctx, s.stackOf(s.host()).Pid(), s.between(3*time.Second, 10*time.Second))
		}},
		{name: "configuration reloaded", make: s.reload},
		{name: "pnetid added and removed", make: s.changePNET},
		{name: "statistics reset", make: s.resetStats},
		{name: "memory limit reached", make: s.useMemory},
		{name: "descriptor limit reached", make: s.fewDescriptors, refuses: true},
	}
	for _, a := range attacks {
		if !a.soak {
			continue
		}
		list = append(list, fault{name: "flood of a " + a.name, make: func(ctx context.Context) error {
			var times atomic.Int64
			flood, stop := context.WithTimeout(ctx, floodTime)
			defer stop()
			return a.run(flood, &s.floodBed, &times)
		}})
	}
	return list
}

// floodTime is how long a flood takes as a fault.
const floodTime = 5 * time.Second

// host returns one of the hosts with stacks.
func (s *soakRun) host() *netnstest.Host {
	return []*netnstest.Host{s.a, s.b}[s.random.IntN(2)]
}

func (s *soakRun) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.random.Int64N(int64(most-least)))
}

func (s *soakRun) stackOf(h *netnstest.Host) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.stacks {
		if m.host == h {
			return m
		}
	}
	return nil
}

// flap takes a device down for some time.
func (s *soakRun) flap(ctx context.Context) error {
	h, i := s.host(), s.random.IntN(2)
	say("  %s of %s", h.Links[i].Name, h.Name)
	if err := h.SetLink(i, false); err != nil {
		return err
	}
	pause(ctx, s.between(100*time.Millisecond, 3*time.Second))
	return h.SetLink(i, true)
}

// unplug takes all devices of a host down for some time: no link of its link groups remains.
func (s *soakRun) unplug(ctx context.Context) (err error) {
	h := s.host()
	for i := range h.Links {
		err = errors.Join(err, h.SetLink(i, false))
	}
	pause(ctx, s.between(100*time.Millisecond, 5*time.Second))
	for i := range h.Links {
		err = errors.Join(err, h.SetLink(i, true))
	}
	return err
}

// moveAddress removes the IPv4 address of a device for some time.
func (s *soakRun) moveAddress(ctx context.Context) error {
	h, i := s.host(), s.random.IntN(2)
	say("  %s of %s", h.Links[i].Name, h.Name)
	change := func(f func(netlink.Link, *netlink.Addr) error) error {
		return h.Do(func() error {
			l, err := netlink.LinkByName(h.Links[i].Name)
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(h.Links[i].IPv4.String() + "/16")
			if err != nil {
				return err
			}
			return f(l, addr)
		})
	}
	if err := change(netlink.AddrDel); err != nil {
		return err
	}
	pause(ctx, s.between(100*time.Millisecond, 3*time.Second))
	return change(netlink.AddrAdd)
}

// loss drops packets that a host receives.
func (s *soakRun) loss(ctx context.Context) error {
	h, i := s.host(), s.random.IntN(2)
	if err := h.SetLoss(i, 0.005+0.03*s.random.Float64()); err != nil {
		return err
	}
	pause(ctx, s.between(2*time.Second, 8*time.Second))
	return h.SetLoss(i, 0)
}

func (s *soakRun) killStack(ctx context.Context) error {
	h := s.host()
	s.stackOf(h).Kill()
	pause(ctx, s.between(0, 4*time.Second))
	return s.startStack(h)
}

func (s *soakRun) endStack(ctx context.Context) error {
	h := s.host()
	if err := s.stackOf(h).end(); err != nil {
		return err
	}
	pause(ctx, s.between(0, 4*time.Second))
	return s.startStack(h)
}

// stop stops a process for some time.
func (s *soakRun) stop(ctx context.Context, pid int, d time.Duration) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	return unix.Kill(pid, unix.SIGCONT)
}

// writeConfig writes the configuration of the stacks, with a pnetid that depends on n.
func (s *soakRun) writeConfig(n int) error {
	text := fmt.Sprintf("pnetids:\n  - pnetid: SOAK%d\n    netdev: eth1\n", n%1000)
	if n == 0 {
		text = "{}\n"
	}
	tmp := s.config + ".new"
	return errors.Join(os.WriteFile(tmp, []byte(text), 0o644), os.Rename(tmp, filepath.Clean(s.config)))
}

// reload has both stacks read a changed configuration, and the first one again.
func (s *soakRun) reload(ctx context.Context) error {
	for _, n := range []int{1 + s.random.IntN(999), 0} {
		if err := s.writeConfig(n); err != nil {
			return err
		}
		for _, h := range []*netnstest.Host{s.a, s.b} {
			if err := s.stackOf(h).Signal(unix.SIGHUP); err != nil {
				return err
			}
		}
		pause(ctx, s.between(0, 2*time.Second))
	}
	return nil
}

func (s *soakRun) changePNET(ctx context.Context) error {
	h, name := s.host(), fmt.Sprintf("P%d", s.random.IntN(1000))
	if _, err := s.ask(h, "pnet", "add", name, "-I", "eth1"); err != nil {
		return err
	}
	pause(ctx, s.between(0, 2*time.Second))
	_, err := s.ask(h, "pnet", "del", name)
	return err
}

func (s *soakRun) resetStats(context.Context) error {
	_, err := s.ask(s.host(), "stats", "reset")
	return err
}

// useMemory makes more connections than the memory of the stacks suffices for. The others
// are TCP.
func (s *soakRun) useMemory(context.Context) error {
	for _, command := range []string{fmt.Sprintf("hold %d 16", beyondMemory), "exchange 16", "release 16"} {
		if err := s.extra.do(context.Background(), 5*time.Minute, "%s", command); err != nil {
			return err
		}
	}
	return nil
}

// fewDescriptors leaves a stack almost no descriptors for some time.
func (s *soakRun) fewDescriptors(ctx context.Context) error {
	pid := s.stackOf(s.host()).Pid()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	var was unix.Rlimit
	few := unix.Rlimit{Cur: uint64(len(fds) + s.random.IntN(5))}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	few.Max = was.Max
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	pause(ctx, s.between(time.Second, 5*time.Second))
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)
}
