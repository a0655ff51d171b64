// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// A network namespace can have several Diverters, of which one takes new connections: the others go on with those that
// they have announced until these end, because another process has taken over, or the kernel still resets those of a
// process that was killed.
//
//	of each          | told apart by
//	-----------------+------------------------------------------------------------
//	devices          | their names: the first number that no other stack has
//	filters          | their handle, which has the index of the device: see filterHandle
//	connections      | the tables of its programs, and map earlier of the later ones

// maxStacks is how many there can be, as in bpf/maps.h.
const maxStacks = 16

// names are those of the devices of a stack. Users see those of the host.
type names struct {
	veth   string // this end of the way to the stack's sockets
	inside string // the other one, in the stack's namespace
	hold   string // of held packets
}

const (
	devicePrefix = "smcr"
	insideSuffix = "in"
	holdSuffix   = "hold"
)

func namesOf(n int) names {
	veth := devicePrefix + strconv.Itoa(n)
	return names{veth: veth, inside: veth + insideSuffix, hold: veth + holdSuffix}
}

// IsOurs reports whether a device is one that a stack has made for connections.
func IsOurs(name string) bool {
	n, ok := strings.CutPrefix(name, devicePrefix)
	if !ok {
		return false
	}
	n = strings.TrimSuffix(strings.TrimSuffix(n, insideSuffix), holdSuffix)
	_, err := strconv.ParseUint(n, 10, 8)
	return err == nil
}

// addDevices makes the devices with names that no other stack has. ns is the namespace of the other end of the pair, held that of
// the device of held packets.
func addDevices(host *netlink.Handle, ns *os.File, held *heldEnd) (names, error) {
	for first := true; ; first = false {
		for i := range maxStacks {
			n := namesOf(i)
			pair := &netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: n.veth, MTU: mtu},
				PeerName:  n.inside, PeerNamespace: netlink.NsFd(int(ns.Fd())), PeerMTU: mtu,
			}
			err := host.LinkAdd(pair)
			if err == nil {
				if err = addHeld(host, n.hold, held); err == nil {
					return n, nil
				}
				// Of a stack that was just killed: the kernel has removed only one of its devices until now.
				err = errors.Join(err, host.LinkDel(pair))
			}
			if !errors.Is(err, unix.EEXIST) {
				return n, fmt.Errorf("divert: make device %s: %w", n.veth, err)
			}
		}
		if !first || !removeKilled(host) {
			return names{}, fmt.Errorf("divert: this network namespace has %d stacks, which is the most: end one of them: %w", maxStacks, unix.EUSERS)
		}
	}
}

// removeKilled removes the device of a stack that was killed: its device of held packets has gone with the process.
// What the kernel still sends for its sockets is lost.
func removeKilled(host *netlink.Handle) bool {
	for i := range maxStacks {
		n := namesOf(i)
		if _, err := host.LinkByName(n.hold); !errors.As(err, new(netlink.LinkNotFoundError)) {
			continue
		}
		if veth, err := host.LinkByName(n.veth); err == nil && host.LinkDel(veth) == nil {
			return true
		}
	}
	return false
}

// Drain has the Diverter take no new connections from now on, because another one does. It goes on with those that it
// has, and with those that it has announced: see [Diverter.Busy]. Close does not harm the other one.
func (d *Diverter) Drain() error { return d.take(0) }

// Resume is the inverse of Drain.
func (d *Diverter) Resume() error {
	if err := d.take(1); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.followed {
		return nil
	}
	return d.own()
}

func (d *Diverter) take(on uint64) error {
	if err := d.bpf.States.Put(stateTakes, on); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	return nil
}

// takes reports whether it takes new connections.
func (d *Diverter) takes() bool {
	var on uint64
	return d.bpf.States.Lookup(stateTakes, &on) == nil && on != 0
}

// Busy reports whether there is a connection that it has taken, or has announced and not yet heard of.
func (d *Diverter) Busy() bool {
	d.mu.Lock()
	n := len(d.flows)
	d.mu.Unlock()
	if n > 0 {
		return true
	}
	var key bpfTuple
	return d.bpf.Flows.NextKey(nil, &key) == nil
}

// Settle has the Diverter take no new connections, and waits until it has heard of those that it has announced, or until
// ctx ends. A peer that was told of SMC, of which nobody takes the connection any more, sends its first message to a program.
func (d *Diverter) Settle(ctx context.Context) error {
	if err := d.Drain(); err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for d.announced() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// announced reports whether there is a connection that was announced, and of which nothing is held yet.
func (d *Diverter) announced() (is bool) {
	_ = each(d.bpf.Flows, func(_ *bpfTuple, k *bpfFlow) { is = is || k.Held == 0 })
	return is
}

// placed is a filter of a stack.
type placed struct {
	device       int
	side, handle uint32
	program      ebpf.ProgramID
}

// collect removes what stacks have left whose devices are gone.
func (d *Diverter) collect() error {
	// First the filters: those of a stack that begins meanwhile have a device in the later list.
	all, err := d.filters()
	if err != nil {
		return err
	}
	there, err := d.stacks()
	if err != nil {
		return err
	}
	errs := []error{d.inheritAll(there)}
	d.mu.Lock()
	d.followed = true
	if d.takes() {
		errs = append(errs, d.own())
	}
	d.mu.Unlock()
	for _, f := range all {
		if !there[f.handle] {
			errs = append(errs, detach(d.host, f.device, f.side, f.handle))
		}
	}
	return errors.Join(errs...)
}

// stacks returns the handles of the filters of the stacks whose devices are there.
func (d *Diverter) stacks() (map[uint32]bool, error) {
	links, err := retry.Whole(netlink.ErrDumpInterrupted, d.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("divert: list devices: %w", err)
	}
	there := map[uint32]bool{}
	for _, l := range links {
		if IsOurs(l.Attrs().Name) {
			there[filterHandle(l.Attrs().Index)] = true
		}
	}
	return there, nil
}

// inheritAll inherits from the stacks that are not there any more. Their filters have to stay until those of this one are at the
// device: in between, what they hold back would reach the programs.
func (d *Diverter) inheritAll(there map[uint32]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for handle, e := range d.earlier {
		if !there[handle] {
			delete(d.earlier, handle)
			errs = append(errs, d.bpf.Earlier.Delete(e.slot))
			d.inherit(e)
			e.close()
		}
	}
	return errors.Join(errs...)
}

// begin has the programs know what the stacks before this one have announced.
func (d *Diverter) begin() error {
	if err := d.learn(); err != nil {
		return err
	}
	there, err := d.stacks()
	if err != nil {
		return err
	}
	return d.inheritAll(there)
}

// inherit takes the connections that a stack had announced to clients, and not yet taken when it was killed: those will speak
// SMC, and nobody else is left to hear it. Those that it had split are over: the kernel has reset them, as far as their devices
// were there. mu is held.
func (d *Diverter) inherit(e earlier) {
	if err := each(e.flows, func(key *bpfTuple, k *bpfFlow) {
		var w bpfWay
		known := look(e.ways, *key, &w) == nil
		if known && w.State == waySplit {
			d.unsure[k.Cookie] = reset{tuple: tupleOf(*key), devs: [2]uint32{k.Via.Dev, w.Via.Dev}, split: true}
			return
		}
		if k.Server == 0 || known && w.State != wayHeld {
			return
		}
		k.Held = 0
		if put(d.bpf.Flows, *key, k, ebpf.UpdateNoExist) == nil {
			of := map[uint32]bpfCount{}
			add(of, k, -1)
			d.recount(of)
			d.undecided.weigh(&k.Slots, 1) // the slots are those of another hash, but what is taken off must have been there
		}
	}); err != nil {
		d.cfg.Log.Warn("what a stack has announced that was killed reaches programs", "err", err)
	}
}

// earlier is a stack before this one: its tables of the same names, and the place of flows in map earlier.
type earlier struct {
	slot        uint32
	flows, ways *ebpf.Map
}

func (e earlier) close() {
	_ = e.flows.Close()
	_ = e.ways.Close()
}

// filters returns those of all stacks of the network namespace.
func (d *Diverter) filters() (found []placed, err error) {
	links, err := retry.Whole(netlink.ErrDumpInterrupted, d.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("divert: list devices: %w", err)
	}
	for _, l := range links {
		for _, side := range []uint32{ingress, egress} {
			all, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Filter, error) { return d.host.FilterList(l, side) })
			if err := ignored(err, unix.ENODEV, unix.EINVAL); err != nil {
				return nil, fmt.Errorf("divert: filters of device %s: %w", l.Attrs().Name, err)
			}
			for _, f := range all {
				if b, ok := f.(*netlink.BpfFilter); ok && b.Handle&^filterIndex == filterTag {
					found = append(found, placed{l.Attrs().Index, side, b.Handle, ebpf.ProgramID(b.Id)})
				}
			}
		}
	}
	return found, nil
}

// learn has the programs know the connections of the stacks that there are, by their filters. The process may give up
// the right to do so afterwards.
func (d *Diverter) learn() error {
	all, err := d.filters()
	if err != nil {
		return err
	}
	for _, f := range all {
		if _, known := d.earlier[f.handle]; known || f.side != egress {
			continue
		}
		e, err := tablesOf(f.program)
		e.slot = uint32(len(d.earlier))
		if err == nil {
			if err = d.bpf.Earlier.Put(e.slot, e.flows); err != nil {
				e.close()
			}
		}
		if err != nil { // it may have just ended
			d.cfg.Log.Debug("the connections of another stack are not known", "err", err)
			continue
		}
		d.earlier[f.handle] = e
	}
	return nil
}

// mapsOf returns the maps of a program with some names. The error is os.ErrNotExist if it does not have them all.
func mapsOf(id ebpf.ProgramID, names ...string) (all map[string]*ebpf.Map, err error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	all = map[string]*ebpf.Map{}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			break
		}
		if i, err := m.Info(); err == nil && slices.Contains(names, i.Name) && all[i.Name] == nil {
			all[i.Name] = m
			continue
		}
		_ = m.Close()
	}
	if len(all) < len(names) {
		for _, m := range all {
			_ = m.Close()
		}
		return nil, os.ErrNotExist
	}
	return all, nil
}

// tablesOf returns the tables of the connections that a program has announced.
func tablesOf(id ebpf.ProgramID) (earlier, error) {
	all, err := mapsOf(id, bpfMapFlows, bpfMapWays)
	return earlier{flows: all[bpfMapFlows], ways: all[bpfMapWays]}, err
}
