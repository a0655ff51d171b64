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
	// Base is the sequence number of the first byte that the socket may send. Limit is
	// how many bytes from there on a gated socket may send.
	Base, Limit uint32
	// Listener is the cookie of the gated listener to which the mark belongs, also in the
	// sockets that are accepted from it. 0: there is none.
	Listener uint64
	// Owner is the user whose share the listener takes. 0: root, or the user of the stack.
	Owner uint32
	// Part is that of the owner in the handshakes array. Home is where the half-open
	// connections of the listener are: another one at its address may have decided that.
	Part, Home uint32
	_          uint32
}

// Size of a mark and offsets of its fields in bytes.
const (
	markFlags    = 0
	markState    = 4
	markBase     = 8
	markLimit    = 12
	markListener = 16
	markOwner    = 24
	markPart     = 28
	markHome     = 32
	markSize     = 40
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
	flagAccepted               // the socket was accepted from a marked listener
	flagSavesSYN               // the application has asked for saved SYNs itself
	flagGated                  // if both ends announce SMC, only data up to Limit passes
	flagGateListen             // sockets accepted from the listener are gated
	flagProbeRoom              // the SYN that is being built has room for the probe
	flagProbed                 // a SYN with the probe was sent
	flagTell                   // the next segment tells the peer that the connection is TCP
	flagHere                   // both ends are marked sockets of one network namespace
)

const (
	// maxSilent limits the number of addresses in the silent map.
	maxSilent = maxListeners
	// maxAnnounced limits the number of connections in the announced map. Beyond it, the
	// owner of the Program is not told of new ones. It has users who have many give some back
	// ([Program.Taken]).
	maxAnnounced = 32768
	// maxAnswers limits the number of handshakes in the answers map. Beyond it, the oldest are
	// forgotten, which are over: see answers.go.
	maxAnswers = maxHandshakes
)

// Values of the answers map.
const (
	answerSent  = 1 // a marked listener has sent the SYN-ACK
	answerTaken = 2 // a marked socket of the same network namespace has got it
)

// listenerKeySize is the size in bytes of a key of the listeners map.
const listenerKeySize = 32

// objects are the maps and the programs in the kernel.
type objects struct {
	// marks is the per-socket storage.
	marks *ebpf.Map
	// listeners has the number of marked listening sockets of each local address, and of each
	// user (tables.go). When a SYN-ACK is sent, the program cannot access the listener. It only knows that a
	// program has set the callback flag of the listener, which may be another program.
	// This map shows whether it was this one.
	listeners *ebpf.Map
	// handshakes has an element for each half-open connection whose SYN had the option:
	// whether the SYN-ACK has the option (handshakes.go).
	handshakes *ebpf.Map
	// silent has the local addresses on which nothing is announced, see [Program.Silence].
	silent *ebpf.Map
	// announced has the connections of gated listeners whose SYN-ACK announced SMC, by
	// their cookies, until [Program.Taken].
	announced *ebpf.Map
	// answers has the SYN-ACKs that announced SMC, until both ends are established: by the
	// addresses that the listener sees, and by both sequence numbers.
	answers *ebpf.Map

	sockOps *ebpf.Program

	// gate and command are attached later, if they are needed. They are loaded with the
	// others, because a process may give up the right to load programs. If the kernel
	// refuses one, it is nil, and the error says why.
	gate, command       *ebpf.Program
	gateErr, commandErr error
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
			{Name: "base", Type: u32, Offset: markBase * 8},
			{Name: "limit", Type: u32, Offset: markLimit * 8},
			{Name: "listener", Type: u64, Offset: markListener * 8},
			{Name: "owner", Type: u32, Offset: markOwner * 8},
			{Name: "part", Type: u32, Offset: markPart * 8},
			{Name: "home", Type: u32, Offset: markHome * 8},
		}},
	})
	if err != nil {
		return nil, bpfError("create the map of marks", err)
	}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}
	key := &btf.Array{Index: u32, Type: u64, Nelems: listenerKeySize / 8}
	o.listeners, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:      "smcr_listeners",
		Type:      ebpf.Hash,
		Flags:     unix.BPF_F_NO_PREALLOC,
		KeySize:   listenerKeySize,
		ValueSize: countSize,
		// Each listener has at most one address and one user.
		MaxEntries: 2*maxListeners + 1,
		// The kernel requires type information for locks.
		Key: key,
		Value: &btf.Struct{Name: "smcr_count", Size: countSize, Members: []btf.Member{
			{Name: "lock", Type: lock},
			{Name: "key", Type: key, Offset: countKey * 8},
			{Name: "n", Type: u32, Offset: countN * 8},
			{Name: "part", Type: u32, Offset: countPart * 8},
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
	o.silent, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_silent",
		Type:       ebpf.Hash,
		Flags:      unix.BPF_F_NO_PREALLOC,
		KeySize:    listenerKeySize,
		ValueSize:  4,
		MaxEntries: maxSilent,
	})
	if err != nil {
		return nil, bpfError("create the map of silent addresses", err)
	}
	o.announced, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_announced",
		Type:       ebpf.Hash,
		Flags:      unix.BPF_F_NO_PREALLOC,
		KeySize:    8,
		ValueSize:  announcedSize,
		MaxEntries: maxAnnounced,
	})
	if err != nil {
		return nil, bpfError("create the map of announced connections", err)
	}
	o.answers, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "smcr_answers",
		Type:       ebpf.LRUHash,
		KeySize:    answerSize,
		ValueSize:  8,
		MaxEntries: maxAnswers,
	})
	if err != nil {
		return nil, bpfError("create the map of answers", err)
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
	o.loadOptional()
	return o, nil
}

// loadOptional loads the programs that are attached later, as far as o does not have them.
func (o *objects) loadOptional() {
	if o.gate == nil {
		o.gate, o.gateErr = o.loadProgram(&ebpf.ProgramSpec{
			Name:         "smcr_gate",
			Type:         ebpf.CGroupSKB,
			AttachType:   ebpf.AttachCGroupInetEgress,
			Instructions: gateProgram(),
		})
	}
	o.command, o.commandErr = o.loadProgram(&ebpf.ProgramSpec{
		Name:         "smcr_command",
		Type:         ebpf.CGroupSockopt,
		AttachType:   ebpf.AttachCGroupSetsockopt,
		Instructions: commandProgram(),
	})
}

func (o *objects) loadProgram(spec *ebpf.ProgramSpec) (*ebpf.Program, error) {
	spec.License = "Apache-2.0"
	for name, m := range map[string]*ebpf.Map{mapMarks: o.marks, mapListeners: o.listeners, mapHandshakes: o.handshakes, mapSilent: o.silent, mapAnnounced: o.announced, mapAnswers: o.answers} {
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
	return errors.Join(o.sockOps.Close(), o.gate.Close(), o.command.Close(), o.marks.Close(), o.listeners.Close(), o.handshakes.Close(), o.silent.Close(), o.announced.Close(), o.answers.Close())
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
