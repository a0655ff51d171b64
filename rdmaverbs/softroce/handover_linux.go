// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Two processes can serve RoCE on the same netdevs while one of them hands over to the
// other. Their queue pairs have numbers of different parts, see [QPNs]. Packet sockets of
// RoCE version 1 give each process a copy of each frame. But only one socket can receive
// the UDP packets of version 2. So the new process gets the UDP sockets, and the old one
// receives copies of its packets with packet sockets (see tap). Each process ignores
// packets for the numbers of the other.
//
//	HandOver   old: the UDP sockets are shared, the taps receive
//	Inherit    new: devices that it opens use the UDP sockets
//	TakeBack   old, if the new one has failed: as before HandOver
//	Leave      old, if the new one serves: closes its copies of the UDP sockets

// Receivers are the sockets that receive RoCE version 2 over one version of IP on a
// netdev.
type Receivers struct {
	Index int        // of the netdev
	IPv6  bool       // otherwise IPv4
	Files []*os.File // the sockets in the order in which they were bound
}

// Close closes the files.
func (r Receivers) Close() error {
	var errs []error
	for _, f := range r.Files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// inheritance has the sockets that another process has handed over, until a device uses
// them.
type inheritance struct {
	mu   sync.Mutex
	list []Receivers
}

// Inherit has devices that are opened from now on receive with the sockets of another
// process. It owns them.
func (p *Provider) Inherit(r []Receivers) {
	in := p.c.inherited
	in.mu.Lock()
	defer in.mu.Unlock()
	in.list = append(in.list, r...)
}

// has reports whether there are sockets that no device uses yet.
func (in *inheritance) has() bool {
	if in == nil {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.list) > 0
}

// take returns descriptors of the sockets for a netdev, or none. The caller owns them.
func (in *inheritance) take(index, family int) (fds []int) {
	if in == nil {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for i, r := range in.list {
		if r.Index != index || r.IPv6 != (family == udp6) {
			continue
		}
		in.list = append(in.list[:i:i], in.list[i+1:]...)
		for _, f := range r.Files {
			if fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
				fds = append(fds, fd)
			}
		}
		_ = r.Close()
		return fds
	}
	return nil
}

// inherit makes the receiving sockets of u of descriptors, which it owns.
func (u *udpPorts) inherit(family int, fds []int) error {
	for i, fd := range fds {
		s, err := newSocket(fd, "UDP socket")
		if err != nil {
			for _, fd := range fds[i+1:] {
				_ = unix.Close(fd)
			}
			return err
		}
		if i == 0 {
			u.sock[family] = s
		} else {
			u.more[family] = append(u.more[family], s)
		}
	}
	return nil
}

// receivers returns the receiving sockets of a version of IP.
func (u *udpPorts) receivers(family int) []*socket {
	if u.sock[family] == nil {
		return nil
	}
	return append([]*socket{u.sock[family]}, u.more[family]...)
}

// HandOver returns the sockets that receive RoCE version 2, for [Provider.Inherit] in
// another process, which must have other numbers of queue pairs. The devices receive their
// packets with packet sockets from now on, and no further device can be opened. The caller
// must close the files, and later call TakeBack or Leave. After an error, everything is as
// before. It must be called in the network namespace of the devices, and needs CAP_NET_RAW.
func (p *Provider) HandOver() (all []Receivers, err error) {
	if p.gone.Swap(true) {
		return nil, errors.New("softroce: the sockets are handed over already")
	}
	defer func() {
		if err == nil {
			return
		}
		for _, r := range all {
			err = errors.Join(err, r.Close())
		}
		all, err = nil, errors.Join(err, p.TakeBack())
	}()
	for _, w := range p.c.siblings.all() {
		r, err := w.handOver(p.c.numbers)
		all = append(all, r...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// TakeBack ends what HandOver began: the devices receive with their sockets again.
func (p *Provider) TakeBack() error {
	var errs []error
	for _, w := range p.c.siblings.all() {
		errs = append(errs, w.takeBack())
	}
	p.gone.Store(false)
	return errors.Join(errs...)
}

// Leave closes the sockets that HandOver has returned, because another process has them.
func (p *Provider) Leave() {
	for _, w := range p.c.siblings.all() {
		w.leave()
	}
}

// all returns the open wires with version 2.
func (s *siblings) all() []*netWire {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return append([]*netWire(nil), s.wires...)
}

func (w *netWire) handOver(numbers QPNs) (all []Receivers, err error) {
	w.v2.hand.Lock()
	defer w.v2.hand.Unlock()
	if w.stopping.Load() || w.v2.tap != nil {
		return nil, nil
	}
	if w.v2.tap, err = w.openTap(numbers); err != nil {
		return nil, err
	}
	for family := range w.v2.sock {
		r := Receivers{Index: w.index, IPv6: family == udp6}
		for _, s := range w.v2.receivers(family) {
			fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return append(all, r), fmt.Errorf("softroce: share a UDP socket: %w", err)
			}
			r.Files = append(r.Files, os.NewFile(uintptr(fd), s.name))
			s.pause()
		}
		if len(r.Files) > 0 {
			all = append(all, r)
		}
	}
	return all, nil
}

func (w *netWire) takeBack() error {
	w.v2.hand.Lock()
	defer w.v2.hand.Unlock()
	if w.stopping.Load() || w.v2.tap == nil {
		return nil
	}
	var errs []error
	for family := range w.v2.sock {
		for _, s := range w.v2.receivers(family) {
			if s.paused.Load() {
				errs = append(errs, s.resume())
			}
		}
	}
	w.v2.tap.close()
	w.v2.tap = nil
	return errors.Join(errs...)
}

func (w *netWire) leave() {
	w.v2.hand.Lock()
	defer w.v2.hand.Unlock()
	if w.stopping.Load() || w.v2.tap == nil {
		return
	}
	var old []*socket
	w.mu.Lock()
	for family := range w.v2.sock {
		old = append(old, w.v2.receivers(family)...)
		w.v2.sock[family], w.v2.more[family] = nil, nil
	}
	w.mu.Unlock()
	for _, s := range old {
		s.close()
	}
}
