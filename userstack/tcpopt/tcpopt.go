// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// State is what is known about the peer of a connection.
type State uint32

// The states of a connection.
const (
	// Unknown: the handshake is not over.
	Unknown State = iota
	// PeerNoSMC: the connection is plain TCP.
	PeerNoSMC
	// PeerSMC: both ends announced SMC-R.
	PeerSMC
	// PeerCopies: the peer, or something on the path, copies the options of the SYN into
	// the SYN-ACK. So nobody has announced SMC-R, and the connection is plain TCP.
	PeerCopies
)

// String returns the state in words.
func (s State) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case PeerNoSMC:
		return "no SMC"
	case PeerSMC:
		return "SMC"
	case PeerCopies:
		return "copies TCP options"
	}
	return fmt.Sprintf("State(%d)", uint32(s))
}

// Options adjust Attach. The zero value is ready for use.
type Options struct {
	// CgroupPath is a directory in a mounted cgroup v2 tree. The program works for
	// sockets of this subtree. Empty means the root of the tree, in an existing or a
	// private mount.
	CgroupPath string
	// Logger receives debugging messages; nil discards them.
	Logger *slog.Logger
}

// Program is the attached eBPF program with the marks of the sockets.
type Program struct {
	log    *slog.Logger
	cgroup *cgroupDir

	// mu is held for reading while the descriptors below are in use.
	mu     sync.RWMutex
	closed bool
	objs   *objects
	link   link.Link

	// listenMu serializes the calls that change marks of listeners: each of them reads,
	// decides and writes.
	listenMu sync.Mutex

	held heldUntil
}

// Attach loads the programs of this package and attaches the main one to the cgroup v2 tree.
// The other methods load no program, so the process may give up the right to do so.
// Errors: ErrNotPermitted, ErrUnsupportedKernel.
func Attach(opts Options) (*Program, error) {
	log := opts.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// Load the program before the cgroup is opened. Then the error for missing
	// privileges names those for eBPF, which are the ones to grant.
	objs, err := loadObjects()
	if err != nil {
		return nil, err
	}
	dir, err := openCgroup(opts.CgroupPath)
	if err != nil {
		return nil, errors.Join(err, objs.Close())
	}
	l, err := link.AttachRawLink(link.RawLinkOptions{
		Target:  dir.fd(),
		Program: objs.sockOps,
		Attach:  ebpf.AttachCGroupSockOps,
	})
	if err != nil {
		return nil, errors.Join(bpfError("attach to the cgroup "+dir.name, err), objs.Close(), dir.Close())
	}
	log.Debug("tcp option program attached", "cgroup", dir.name)
	return &Program{log: log, cgroup: dir, objs: objs, link: l}, nil
}

// Close detaches the program and removes every mark. Handshakes that are in progress continue
// without the option. Close does not change the sockets. A second Close does nothing.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if err := errors.Join(p.link.Close(), p.objs.Close(), p.cgroup.Close()); err != nil {
		return fmt.Errorf("tcpopt: close: %w", err)
	}
	return nil
}

// acquire keeps the descriptors open until release. The error is ErrClosed.
func (p *Program) acquire() error {
	p.mu.RLock()
	if p.closed {
		p.mu.RUnlock()
		return ErrClosed
	}
	return nil
}

func (p *Program) release() { p.mu.RUnlock() }

// MarkConnect makes the next connection of the socket announce SMC-R. It must be called
// before connect(2). The mark ends when the connection is established. It remains after a
// failed attempt. The application must not send data in the SYN (MSG_FASTOPEN): then the
// SYN has no option. But if the Fast Open cookie is not known yet, the SYN has the
// option, and the queued data follows after the handshake.
// Errors: ErrUnsupportedSocket, ErrSocketState.
func (p *Program) MarkConnect(fd int) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	state, err := tcpState(fd)
	if err != nil {
		return err
	}
	if state != unix.BPF_TCP_CLOSE {
		return ErrSocketState
	}
	if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT); err == nil && v != 0 {
		return fmt.Errorf("%w: TCP_FASTOPEN_CONNECT is set, its first write goes into the SYN", ErrUnsupportedSocket)
	}
	m, err := p.objs.lookup(fd)
	if err != nil && !errors.Is(err, ErrNotMarked) {
		return err
	}
	return p.objs.update(fd, mark{Flags: m.Flags&(flagListen|flagSavesSYN|flagOwnState) | flagConnect})
}

// MarkListen makes the socket answer SYNs that announce SMC-R with SYN-ACKs that do the
// same. Before listen(2), it costs one map update. Later (Linux 6.12), it costs a
// temporary attachment to the cgroup, and applies to the SYNs that follow. The mark lasts
// as long as the socket.
// Errors: ErrUnsupportedSocket, ErrSocketState, ErrListening.
func (p *Program) MarkListen(fd int) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	p.listenMu.Lock()
	defer p.listenMu.Unlock()
	state, err := tcpState(fd)
	if err != nil {
		return err
	}
	if state != unix.BPF_TCP_CLOSE && state != unix.BPF_TCP_LISTEN {
		return ErrSocketState
	}
	before, err := p.objs.lookup(fd)
	if err != nil && !errors.Is(err, ErrNotMarked) {
		return err
	}
	if before.Flags&flagListen == 0 {
		flags := before.Flags&flagConnect | flagListen
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN); err == nil && v != 0 {
			flags |= flagSavesSYN // any mode of TCP_SAVE_SYN is enough
		}
		if err := p.objs.update(fd, mark{Flags: flags}); err != nil {
			return err
		}
	}
	// Read the state again. Another thread may have called listen before the mark was
	// set, so that the program did not see it.
	if state, err = tcpState(fd); err != nil {
		return err
	}
	if state != unix.BPF_TCP_LISTEN {
		return nil
	}
	m, err := p.objs.lookup(fd)
	if err != nil {
		return err
	}
	if m.Flags&flagRegistered != 0 {
		return nil
	}
	if err := p.registerListening(fd); err != nil {
		if before.Flags == 0 {
			return errors.Join(err, p.objs.delete(fd))
		}
		return errors.Join(err, p.objs.update(fd, before))
	}
	return nil
}

// Peer returns what the peer of a socket announced. The socket was connected after
// MarkConnect, or was accepted from a marked listener. The answer is Unknown until the
// handshake is over. Then it does not change any more.
// Errors: ErrNotMarked, ErrUnsupportedSocket.
func (p *Program) Peer(fd int) (State, error) {
	if err := p.acquire(); err != nil {
		return Unknown, err
	}
	defer p.release()
	m, err := p.objs.lookup(fd)
	if err != nil {
		return Unknown, err
	}
	if m.State != Unknown {
		return m.State, nil
	}
	state, err := tcpState(fd)
	if err != nil {
		return Unknown, err
	}
	switch state {
	case unix.BPF_TCP_CLOSE, unix.BPF_TCP_LISTEN, unix.BPF_TCP_SYN_SENT, unix.BPF_TCP_SYN_RECV:
		return Unknown, nil
	}
	// The kernel reports TCP_INFO under the lock of the socket. The end of the handshake
	// has the same lock, so the program has recorded its result.
	if m, err = p.objs.lookup(fd); err != nil {
		return Unknown, err
	}
	if m.State == Unknown {
		// The program was not called for the connection, so SMC was not announced.
		return PeerNoSMC, nil
	}
	return m.State, nil
}

// tcpState returns the state of a plain TCP socket.
func tcpState(fd int) (int, error) {
	proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		if errors.Is(err, unix.ENOTSOCK) {
			return 0, fmt.Errorf("%w: %w", ErrUnsupportedSocket, err)
		}
		return 0, fmt.Errorf("tcpopt: SO_PROTOCOL: %w", err)
	}
	switch proto {
	case unix.IPPROTO_TCP:
	case unix.IPPROTO_MPTCP:
		return 0, fmt.Errorf("%w: MPTCP keeps its TCP sockets out of reach (in Go: net.ListenConfig.SetMultipathTCP(false) or GODEBUG=multipathtcp=0)", ErrUnsupportedSocket)
	default:
		return 0, fmt.Errorf("%w: protocol %d", ErrUnsupportedSocket, proto)
	}
	// A raw or netlink socket may also have the protocol number 6, but it has no
	// TCP_INFO.
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, fmt.Errorf("%w: TCP_INFO: %w", ErrUnsupportedSocket, err)
	}
	return int(info.State), nil
}
