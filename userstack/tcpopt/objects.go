// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// mark is the storage of a socket. The kernel frees it with the socket. It copies the
// mark of a listener to each socket that is accepted from it.
type mark struct {
	Flags uint32
	State State
}

// Size of a mark and offsets of its fields in bytes.
const (
	markFlags = 0
	markState = 4
	markSize  = 8
)

// Bits of mark.Flags.
const (
	flagConnect    = 1 << iota // announce with the next SYN
	flagListen                 // announce with the SYN-ACKs
	flagArmed                  // connect was called and the handshake is not over
	flagReserved               // the SYN that is being built has room for the option
	flagSent                   // a SYN with the option was sent
	flagFastOpen               // the SYN carried data
	flagRegistered             // the listener's address is in the listeners map
	flagOwnState               // the program has asked for the state callbacks of the listener
	flagSavesSYN               // the application has asked for saved SYNs itself
	flagProbeRoom              // the SYN that is being built has room for the probe
	flagProbed                 // a SYN with the probe was sent
	flagTell                   // the next segment tells the peer that the connection is TCP
)

// listenerKeySize is the size in bytes of a key of the listeners map.
const listenerKeySize = 32

// objects are the maps and the programs in the kernel.
type objects struct {
	// marks is the per-socket storage.
	marks *ebpf.Map
	// listeners has the number of marked listening sockets of each local address (tables.go).
	// When a SYN-ACK is sent, the program cannot access the listener. It only knows that a
	// program has set the callback flag of the listener, which may be another program.
	// This map shows whether it was this one.
	listeners *ebpf.Map
	// handshakes has an element for each half-open connection whose SYN had the option:
	// whether the SYN-ACK has the option (handshakes.go).
	handshakes *ebpf.Map
	// held says to whom nothing is announced (hold.go).
	held    *ebpf.Map
	sockOps *ebpf.Program

	// command is attached later, if it is needed. It is loaded with the other one, because a
	// process may give up the right to load programs. If the kernel refuses it, it is nil,
	// and the error says why.
	command    *ebpf.Program
	commandErr error
}

func loadObjects() (_ *objects, err error) {
	if err := checkPrivilege(); err != nil {
		return nil, err
	}
	o := &objects{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	u64 := &btf.Int{Name: "unsigned long long", Size: 8}
	o.marks, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:      "smcr_marks",
		Type:      ebpf.SkStorage,
		Flags:     unix.BPF_F_NO_PREALLOC | unix.BPF_F_CLONE,
		KeySize:   4,
		ValueSize: markSize,
		// The kernel requires type information for socket storage.
		Key: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
		Value: &btf.Struct{Name: "smcr_mark", Size: markSize, Members: []btf.Member{
			{Name: "flags", Type: u32, Offset: markFlags * 8},
			{Name: "state", Type: u32, Offset: markState * 8},
		}},
	})
	if err != nil {
		return nil, bpfError("create the map of marks", err)
	}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}
	key := &btf.Array{Index: u32, Type: u64, Nelems: listenerKeySize / 8}
	o.listeners, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_listeners",
		Type:       ebpf.Hash,
		Flags:      unix.BPF_F_NO_PREALLOC,
		KeySize:    listenerKeySize,
		ValueSize:  countSize,
		MaxEntries: maxListeners,
		// The kernel requires type information for locks.
		Key: key,
		Value: &btf.Struct{Name: "smcr_count", Size: countSize, Members: []btf.Member{
			{Name: "lock", Type: lock},
			{Name: "key", Type: key, Offset: countKey * 8},
			{Name: "n", Type: u32, Offset: countN * 8},
		}},
	})
	if err != nil {
		return nil, bpfError("create the map of listeners", err)
	}
	o.handshakes, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_handshake",
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  shakeSize,
		MaxEntries: maxHandshakes,
		Key:        u32,
		Value: &btf.Struct{Name: "smcr_handshake", Size: shakeSize, Members: []btf.Member{
			{Name: "lock", Type: lock},
			{Name: "fact", Type: u32, Offset: shakeFact * 8},
			{Name: "cookie", Type: u64, Offset: shakeCookie * 8},
			{Name: "until", Type: u64, Offset: shakeUntil * 8},
			{Name: "full", Type: u64, Offset: shakeFull * 8},
		}},
	})
	if err != nil {
		return nil, bpfError("create the map of handshakes", err)
	}
	o.held, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_held",
		Type:       ebpf.Hash,
		Flags:      unix.BPF_F_NO_PREALLOC,
		KeySize:    heldKeySize,
		ValueSize:  8,
		MaxEntries: maxHeld,
	})
	if err != nil {
		return nil, bpfError("create the map of those to whom nothing is announced", err)
	}
	o.sockOps, err = o.loadProgram(&ebpf.ProgramSpec{
		Name:         "smcr_tcpopt",
		Type:         ebpf.SockOps,
		AttachType:   ebpf.AttachCGroupSockOps,
		Instructions: sockOpsProgram(),
	})
	if err != nil {
		return nil, err
	}
	o.command, o.commandErr = o.loadProgram(&ebpf.ProgramSpec{
		Name:         "smcr_command",
		Type:         ebpf.CGroupSockopt,
		AttachType:   ebpf.AttachCGroupSetsockopt,
		Instructions: commandProgram(),
	})
	return o, nil
}

func (o *objects) loadProgram(spec *ebpf.ProgramSpec) (*ebpf.Program, error) {
	spec.License = "Apache-2.0"
	for name, m := range map[string]*ebpf.Map{mapMarks: o.marks, mapListeners: o.listeners, mapHandshakes: o.handshakes, mapHeld: o.held} {
		if err := spec.Instructions.AssociateMap(name, m); err != nil && !errors.Is(err, asm.ErrUnreferencedSymbol) {
			return nil, fmt.Errorf("tcpopt: link program %s: %w", spec.Name, err)
		}
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, bpfError("load program "+spec.Name, err)
	}
	return prog, nil
}

// Close releases everything. Objects that were not created are nil.
func (o *objects) Close() error {
	// A nil *ebpf.Map or *ebpf.Program closes without an error.
	return errors.Join(o.sockOps.Close(), o.command.Close(), o.marks.Close(), o.listeners.Close(), o.handshakes.Close(), o.held.Close())
}

// lookup returns the mark of a socket, or ErrNotMarked.
func (o *objects) lookup(fd int) (mark, error) {
	var m mark
	err := o.marks.Lookup(int32(fd), &m)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return mark{}, ErrNotMarked
	}
	if err != nil {
		return mark{}, storageError("read the mark of the socket", err)
	}
	return m, nil
}

func (o *objects) update(fd int, m mark) error {
	if err := o.marks.Put(int32(fd), m); err != nil {
		return storageError("mark the socket", err)
	}
	return nil
}

// delete removes the mark if there is one.
func (o *objects) delete(fd int) error {
	if err := o.marks.Delete(int32(fd)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return storageError("unmark the socket", err)
	}
	return nil
}

func storageError(step string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTSOCK):
		return fmt.Errorf("%w: %w", ErrUnsupportedSocket, err)
	case errors.Is(err, unix.EPERM):
		return bpfError(step, err)
	}
	return fmt.Errorf("tcpopt: %s: %w", step, err)
}
