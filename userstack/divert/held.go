// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// heldBuffer is the receive buffer of the socket of held packets: of some thousand connections at once.
const heldBuffer = 8 << 20

// heldEnd is the stack's end of the device of held packets, in a network namespace in which there is nothing else. The namespace
// ends with the process, and with it the device: that of inner and outer stays for as long as the kernel sends something for them.
//
// It is no TAP device: this one needs no file in /dev, which a sandbox does not have.
type heldEnd struct {
	ns     *os.File
	host   *netlink.Handle // in ns
	socket *os.File        // has all packets of the device, once it is bound
	raw    syscall.RawConn // of socket
}

func newHeldEnd() (e *heldEnd, err error) {
	t, err := newThread()
	if err != nil {
		return nil, err
	}
	defer t.close()
	e = &heldEnd{}
	if e.ns, err = t.namespace(); err == nil {
		err = t.do(e.make)
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// make makes what is in the namespace of the calling thread.
func (e *heldEnd) make() (err error) {
	if e.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	// Protocol 0: nothing is received before it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("divert: the socket of held packets: %w", os.NewSyscallError("socket", err))
	}
	e.socket = os.NewFile(uintptr(fd), "held packets")
	return nil
}

// open begins to receive the packets of the device.
func (e *heldEnd) open(name string) error {
	index, err := up(e.host, name)
	if err != nil {
		return err
	}
	if e.raw, err = e.socket.SyscallConn(); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	var serr error
	if err := e.raw.Control(func(fd uintptr) {
		s := setter{fd: int(fd)}
		s.int(unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		s.int(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, heldBuffer)
		if serr = s.err; serr == nil {
			serr = os.NewSyscallError("bind", unix.Bind(int(fd), &unix.SockaddrLinklayer{Protocol: swapped(unix.ETH_P_ALL), Ifindex: index}))
		}
	}); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	if serr != nil {
		return fmt.Errorf("divert: the socket of held packets: %w", serr)
	}
	return nil
}

func (e *heldEnd) close() {
	if e.socket != nil {
		_ = e.socket.Close()
	}
	if e.host != nil {
		e.host.Close()
	}
	if e.ns != nil {
		_ = e.ns.Close()
	}
}

// noOffload has the kernel compute checksums and cut large packets before a device of this network namespace has them.
func noOffload(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("divert: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	for _, feature := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_STXCSUM} {
		v := &struct{ cmd, data uint32 }{cmd: feature}
		r := struct { // struct ifreq
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [24 - unsafe.Sizeof(uintptr(0))]byte
		}{data: unsafe.Pointer(v)}
		copy(r.name[:unix.IFNAMSIZ-1], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
		runtime.KeepAlive(v)
		if errno != 0 {
			return fmt.Errorf("divert: device %s: %w", name, os.NewSyscallError("ethtool", errno))
		}
	}
	return nil
}

// addHeld makes the device of held packets in the network namespace of host, which must be that of the calling thread.
// The error matches unix.EEXIST if there is one of this name.
func addHeld(host *netlink.Handle, name string, e *heldEnd) error {
	err := host.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu},
		PeerName:  name, PeerNamespace: netlink.NsFd(int(e.ns.Fd())), PeerMTU: mtu,
	})
	if err != nil {
		return err
	}
	return errors.Join(noOffload(name), e.open(name))
}
