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

// mark is the storage of a socket. The kernel frees it with the socket, and
// copies a listener's to each socket accepted from it.
type mark struct {
	Flags uint32
	State State
	// Base is the sequence number of the first byte that the socket may send,
	// Limit how many bytes from there on a gated socket has sent or may send.
	Base, Limit uint32
}

// Offsets and size of mark in bytes.
const (
	markFlags = 0
	markState = 4
	markBase  = 8
	markLimit = 12
	markSize  = 16
)

// Bits of mark.Flags.
const (
	flagConnect    = 1 << iota // announce with the next SYN
	flagListen                 // announce with the SYN-ACKs
	flagArmed                  // a connect was seen, its handshake is not over
	flagReserved               // there is room for the option in the SYN being built
	flagSent                   // the option was written on a SYN
	flagFastOpen               // the SYN carried data
	flagRegistered             // the listener's address is in the listeners map
	flagOwnState               // we asked for the listener's state callbacks
	flagAccepted               // the socket was accepted from a marked listener
	flagSavesSYN               // the application asked for saved SYNs itself
	flagGated                  // with SMC announced by both, data passes up to Limit only
	flagGateListen             // sockets accepted from the listener are gated
)

const (
	// maxListeners bounds the addresses and ports of marked listeners of all
	// network namespaces. Beyond it the longest unused one answers without
	// the option.
	maxListeners = 8192
	// maxHandshakes bounds the half-open connections whose SYN-ACK is
	// remembered. Beyond it the saved SYN decides, which cannot tell that a
	// SYN-ACK had no room: a server may then say PeerSMC where the client
	// says PeerNoSMC.
	maxHandshakes = 4096
)

// Values of the handshakes map.
const (
	synAckPlain = 1 // there was no room
	synAckSMC   = 2 // the option is on it
)

// listenerKeySize is the size in bytes of a key of the listeners map.
const listenerKeySize = 32

// objects are the maps and the main program in the kernel.
type objects struct {
	// marks is the per-socket storage.
	marks *ebpf.Map
	// listeners counts the marked listening sockets of a local address. In
	// the context of a SYN-ACK the listener itself is out of reach; that its
	// callback flag is set says as much, unless the flag is another
	// program's. This map tells them apart.
	listeners *ebpf.Map
	// handshakes says by cookie of half-open connections whose SYN had the
	// option whether their SYN-ACK has it.
	handshakes *ebpf.Map

	sockOps *ebpf.Program
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
	o.marks, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:      "smcr_marks",
		Type:      ebpf.SkStorage,
		Flags:     unix.BPF_F_NO_PREALLOC | unix.BPF_F_CLONE,
		KeySize:   4,
		ValueSize: markSize,
		// The kernel demands type information for socket storage.
		Key: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
		Value: &btf.Struct{Name: "smcr_mark", Size: markSize, Members: []btf.Member{
			{Name: "flags", Type: u32, Offset: markFlags * 8},
			{Name: "state", Type: u32, Offset: markState * 8},
			{Name: "base", Type: u32, Offset: markBase * 8},
			{Name: "limit", Type: u32, Offset: markLimit * 8},
		}},
	})
	if err != nil {
		return nil, bpfError("create the map of marks", err)
	}
	o.listeners, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_listeners",
		Type:       ebpf.LRUHash,
		KeySize:    listenerKeySize,
		ValueSize:  4,
		MaxEntries: maxListeners,
	})
	if err != nil {
		return nil, bpfError("create the map of listeners", err)
	}
	o.handshakes, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_handshake",
		Type:       ebpf.LRUHash,
		KeySize:    8,
		ValueSize:  8,
		MaxEntries: maxHandshakes,
	})
	if err != nil {
		return nil, bpfError("create the map of handshakes", err)
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
	return o, nil
}

// loadGate loads the program that looks at what gated sockets send.
func (o *objects) loadGate() (*ebpf.Program, error) {
	return o.loadProgram(&ebpf.ProgramSpec{
		Name:         "smcr_gate",
		Type:         ebpf.CGroupSKB,
		AttachType:   ebpf.AttachCGroupInetEgress,
		Instructions: gateProgram(),
	})
}

// loadCommand loads the program that acts on listening sockets.
func (o *objects) loadCommand() (*ebpf.Program, error) {
	return o.loadProgram(&ebpf.ProgramSpec{
		Name:         "smcr_command",
		Type:         ebpf.CGroupSockopt,
		AttachType:   ebpf.AttachCGroupSetsockopt,
		Instructions: commandProgram(),
	})
}

func (o *objects) loadProgram(spec *ebpf.ProgramSpec) (*ebpf.Program, error) {
	spec.License = "Apache-2.0"
	for name, m := range map[string]*ebpf.Map{mapMarks: o.marks, mapListeners: o.listeners, mapHandshakes: o.handshakes} {
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

// Close releases what was created; it may be called on a half-made value.
func (o *objects) Close() error {
	// A nil *ebpf.Map or *ebpf.Program closes without an error.
	return errors.Join(o.sockOps.Close(), o.marks.Close(), o.listeners.Close(), o.handshakes.Close())
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
