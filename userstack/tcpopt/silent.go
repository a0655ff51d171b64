// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// An Address is a local TCP address of a network namespace.
type Address struct {
	// NetNS is the cookie of the network namespace (SO_NETNS_COOKIE).
	NetNS uint64
	// AddrPort is the address. An unspecified one, of either family, means every address
	// of the port.
	netip.AddrPort
}

// key returns the key of the address in the maps, see listenerKey.
func (a Address) key() (k [listenerKeySize]byte) {
	binary.NativeEndian.PutUint64(k[:], a.NetNS)
	if ip := a.Addr().Unmap(); ip.IsValid() && !ip.IsUnspecified() {
		b := ip.As16()
		copy(k[8:], b[:])
	}
	binary.NativeEndian.PutUint64(k[24:], uint64(a.Port()))
	return k
}

// addressOf is the reverse of key.
func addressOf(k []byte) Address {
	return Address{
		NetNS:    binary.NativeEndian.Uint64(k),
		AddrPort: netip.AddrPortFrom(netip.AddrFrom16([16]byte(k[8:24])).Unmap(), uint16(binary.NativeEndian.Uint64(k[24:]))),
	}
}

// Silence has no listener of a local address announce SMC-R from now on, whoever has it:
// the marks stay, but the SYN-ACKs go out without the option. It is for listeners that the
// caller cannot reach any more. At most 8192 addresses can be silent.
func (p *Program) Silence(a Address) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	if err := p.objs.silent.Put(a.key(), uint32(1)); err != nil {
		return fmt.Errorf("tcpopt: silence %s: %w", a.AddrPort, err)
	}
	return nil
}

// Unsilence takes back Silence. It does nothing to an address that is not silent.
func (p *Program) Unsilence(a Address) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	if err := p.objs.silent.Delete(a.key()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("tcpopt: %s: %w", a.AddrPort, err)
	}
	return nil
}

// Silent returns the addresses of Silence, also those of another process that shares the
// Program.
func (p *Program) Silent() ([]Address, error) {
	if err := p.acquire(); err != nil {
		return nil, err
	}
	defer p.release()
	var (
		found []Address
		key   [listenerKeySize]byte
		value uint32
	)
	it := p.objs.silent.Iterate()
	for it.Next(&key, &value) {
		found = append(found, addressOf(key[:]))
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("tcpopt: list silent addresses: %w", err)
	}
	return found, nil
}

// An Announced is a connection of a listener of GateListen whose peer was told of SMC-R and
// will send a PROPOSAL. It may have ended.
type Announced struct {
	Cookie   uint64 // of its socket (SO_COOKIE), before and after accept(2)
	Listener uint64 // the cookie of the listener
	Local    Address
	Remote   netip.AddrPort
}

// Announced returns the connections for which nobody has called Taken, in any order. There are
// at most 32768: later ones are not listed, until there is room.
func (p *Program) Announced() ([]Announced, error) {
	if err := p.acquire(); err != nil {
		return nil, err
	}
	defer p.release()
	var (
		found  []Announced
		cookie uint64
		value  [announcedSize]byte
	)
	it := p.objs.announced.Iterate()
	for it.Next(&cookie, &value) {
		found = append(found, Announced{
			Cookie: cookie, Listener: binary.NativeEndian.Uint64(value[:]),
			Local: addressOf(value[8:]), Remote: addressOf(value[8+listenerKeySize:]).AddrPort,
		})
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("tcpopt: list connections: %w", err)
	}
	return found, nil
}

// Taken forgets the connection with that cookie in the list of Announced, because the caller
// has it, or it has ended. It reports whether it was there: of several calls, also in other
// processes that share the Program, only one gets true.
func (p *Program) Taken(cookie uint64) (bool, error) {
	if err := p.acquire(); err != nil {
		return false, err
	}
	defer p.release()
	switch err := p.objs.announced.Delete(cookie); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("tcpopt: forget a connection: %w", err)
	}
	return true, nil
}

// Listens reports whether the socket is listening and has a mark of MarkListen or
// GateListen.
func (p *Program) Listens(fd int) (bool, error) {
	if err := p.acquire(); err != nil {
		return false, err
	}
	defer p.release()
	state, err := tcpState(fd)
	if err != nil || state != unix.BPF_TCP_LISTEN {
		return false, err
	}
	m, err := p.objs.lookup(fd)
	if errors.Is(err, ErrNotMarked) {
		return false, nil
	}
	return m.Flags&flagListen != 0, err
}
