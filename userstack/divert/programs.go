// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// States of a bpfWay, as in bpf/maps.h.
const (
	wayHeld   = iota // packets go to the device of held packets
	wayOuter         // those of the peer go to outer, those of the program nowhere
	waySplit         // those of the peer go to outer, those of the program to inner
	wayProbed        // a client's that stays TCP: they go as they do
	wayFrozen        // as waySplit, but they lose their data
)

// Keys of map states, as in bpf/maps.h.
const (
	stateAlive   = uint32(iota) // until when the stack counts as alive, as monotonic has it
	stateTakes                  // 1 if it takes new connections
	stateRemoved                // how many connections the stack has removed from the table
)

// Bits of the values of map cgroups, as in bpf/maps.h.
const (
	connects = 1 << iota
	accepts
	always
)

// Bounds of the connections that are announced or taken. Each has descriptors: outer, inner, and the stack's of both.
const (
	flowFiles    = 4   // descriptors of a connection
	otherFiles   = 512 // what else the process may have open
	perUserFlows = 4096
)

// Bounds of what the programs keep of each user beside that: sets of seats. A map has room for sixteen users who take all of theirs.
const (
	seats     = 4    // in a set, as in bpf/maps.h
	userQuiet = 2048 // peers to which nothing is announced
	userPlain = 4096 // sockets of which is known why they are TCP
)

// flowsFor returns how many connections a process can have that may have a number of files open, if the tables take most: a connection
// that is taken without a descriptor left could only be reset, and one that is not announced is TCP.
func flowsFor(files uint64, most int) int {
	if files < otherFiles+flowFiles {
		return 1
	}
	return int(min((files-otherFiles)/flowFiles, uint64(most)))
}

// flows is flowsFor for this process and the tables of the programs.
func flows(spec *ebpf.CollectionSpec) int {
	most := mostFlows(spec)
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return most
	}
	return flowsFor(l.Cur, most)
}

// mostFlows returns how many connections the tables of the programs take.
func mostFlows(spec *ebpf.CollectionSpec) int {
	return int(min(spec.Maps[bpfMapFlows].MaxEntries, spec.Maps[bpfMapWays].MaxEntries))
}

// A share says how many of all connections root may have, and each other user: root leaves a sixteenth to others, and they leave
// half to each other. last are those of all that are for users who have few: bpf/shares.h says how many that is.
type share struct{ all, root, user, last int }

func shareOf(all, perUser int) share {
	last := all / 16
	return share{all: all, root: max(all-last, 1), user: max(min(perUser, all/2), 1), last: last}
}

// kernelTypes returns the types of the kernel, in which the programs find the queue of a listening socket. Without, they do not
// look at it. Those of modules, which package ebpf would also read, have nothing of it.
func kernelTypes(cfg *Config) (*btf.Spec, error) {
	load := btf.LoadKernelSpec
	if cfg.types != nil {
		load = cfg.types
	}
	types, err := load()
	if err == nil {
		return types, nil
	}
	cfg.Log.Warn("silent hosts can fill the queues of listening sockets: the kernel does not say where these are", "err", err)
	none, err := new(btf.Builder).Marshal(nil, nil)
	if err != nil {
		return nil, err
	}
	return btf.LoadSpecFromReader(bytes.NewReader(none))
}

// loadPrograms loads the programs with their constants. They go on with shared maps of another stack, by their names, if all are alike.
func loadPrograms(veth, hold int, mark uint32, cfg *Config, shared map[string]*ebpf.Map) (*bpfObjects, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, fmt.Errorf("divert: %w", err)
	}
	most := shareOf(cmp.Or(cfg.Flows, flows(spec)), cmp.Or(cfg.PerUser, perUserFlows))
	spec.Maps[bpfMapFlows].MaxEntries = uint32(most.all)
	errs := []error{spec.Variables[bpfVarSeed].Set(undecidedSeed())}
	for name, value := range map[string]uint32{bpfVarUndecidedMost: uint32(min(cmp.Or(cfg.undecided, undecidedMost), (most.all+1)/2)), bpfVarVeth: uint32(veth), bpfVarHold: uint32(hold), bpfVarMark: mark, bpfVarPerUser: uint32(most.user), bpfVarOfRoot: uint32(most.root), bpfVarOfAll: uint32(most.all), bpfVarLast: uint32(most.last), bpfVarQuietSets: userQuiet / seats, bpfVarPlainSets: uint32(cmp.Or(cfg.plain, userPlain)) / seats} {
		errs = append(errs, spec.Variables[name].Set(value))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("divert: %w", err)
	}
	o, with := new(bpfObjects), &ebpf.CollectionOptions{}
	if with.Programs.KernelTypes, err = kernelTypes(cfg); err != nil {
		return nil, fmt.Errorf("divert: %w", err)
	}
	for name, m := range shared {
		if spec.Maps[name].Compatible(m) != nil {
			shared = nil
			break
		}
	}
	with.MapReplacements = shared
	if err := spec.LoadAndAssign(o, with); err != nil {
		return nil, fmt.Errorf("divert: load the eBPF programs: %w", err)
	}
	return o, nil
}

// Lacks reports whether an error of New or Follow is due to what the process may not do, or the kernel does not have.
func Lacks(err error) bool {
	for _, lack := range []error{ebpf.ErrNotSupported, errors.ErrUnsupported, os.ErrPermission, unix.ENODEV, unix.EPROTONOSUPPORT} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// A side of a device at which a program can be.
const (
	ingress = netlink.HANDLE_MIN_INGRESS
	egress  = netlink.HANDLE_MIN_EGRESS
)

// The filters of this package among those of others: first, and with handles of their own. The handle of a stack has
// the index of its device to its sockets, which the kernel does not use again soon: if that is gone, so is the stack.
const (
	filterPriority = 1
	filterTag      = 0x53000000
	filterIndex    = 0x00ffffff
)

// filterHandle returns the handle of the filters of a stack.
func filterHandle(veth int) uint32 { return filterTag | uint32(veth)&filterIndex }

// attach has a program see the packets of one side of a device. It is a filter of the clsact qdisc,
// which is there since Linux 4.5 and outlives the process: what the kernel still sends for sockets of a
// process that has ended has its way.
func attach(h *netlink.Handle, index int, side, handle uint32, p *ebpf.Program, name string) error {
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := ignored(h.QdiscAdd(qdisc), unix.EEXIST); err != nil {
		return fmt.Errorf("divert: qdisc of device %d: %w", index, err)
	}
	f := filter(index, side, handle)
	f.Fd, f.Name, f.DirectAction = p.FD(), name, true
	if err := h.FilterReplace(f); err != nil {
		return fmt.Errorf("divert: program %s at device %d: %w", name, index, err)
	}
	return nil
}

// detach is the inverse of attach. The qdisc stays, with the filters of others.
func detach(h *netlink.Handle, index int, side, handle uint32) error {
	return ignored(h.FilterDel(filter(index, side, handle)), unix.ENOENT, unix.ENODEV, unix.EINVAL)
}

func filter(index int, side, handle uint32) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: index, Parent: side, Handle: handle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
	}}
}
