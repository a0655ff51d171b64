// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ways are the two ends of a connection that comes to the reflector.
type ways struct{ client, server netip.AddrPort }

// A held is a SYN that waits for the connection with the server, or, with made, a connection of which
// the SYN has gone on, and that accept(2) does not have yet.
type held struct {
	ways  ways
	frame []byte
	back  int // socket of the connection with the server
	made  bool
	until time.Time
}

// heldFor is how long a connection is held. A client that has given up tells nobody.
const heldFor = 10 * time.Second

// openTAP opens the device of SYNs that wait.
func openTAP() (fd int, err error) {
	if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return 0, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	req, err := unix.NewIfreq(tapName)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("device %s: %w", tapName, os.NewSyscallError("ioctl", err))
	}
	return fd, nil
}

const macs = 2 * 6 // the addresses at the begin of an Ethernet frame

// parse returns the ends of the connection of a TCP packet without IP fragments, or false.
func parse(frame []byte) (w ways, ok bool) {
	if len(frame) < macs+2+20 {
		return w, false
	}
	ip := frame[macs+2:]
	var from, to netip.Addr
	var tcp []byte
	switch kind := binary.BigEndian.Uint16(frame[macs:]); {
	case kind == unix.ETH_P_IP && ip[9] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		tcp = ip[min(len(ip), int(ip[0]&15)*4):]
	case kind == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[6] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		tcp = ip[40:]
	}
	if len(tcp) < 20 {
		return w, false
	}
	port := func(at int) uint16 { return binary.BigEndian.Uint16(tcp[at:]) }
	return ways{netip.AddrPortFrom(from, port(0)), netip.AddrPortFrom(to, port(2))}, true
}

// syn takes a SYN that has come, perhaps again.
func (r *reflector) syn(frame []byte) {
	w, ok := parse(frame)
	if !ok {
		return
	}
	if h := r.held[w]; h != nil {
		if h.made {
			r.letGo(h, toReflector)
		}
		return
	}
	if r.live[w] { // sent again
		r.letGo(&held{ways: w, frame: frame}, toReflector)
		return
	}
	h := &held{ways: w, frame: slices.Clone(frame), until: time.Now().Add(heldFor)}
	var err error
	if h.back, err = connectBack(w); err == nil {
		err = r.watch(h.back, unix.EPOLLOUT, func(uint32) { r.connected(h) })
	}
	if err != nil {
		r.log.Warn("a SYN is lost", "client", w.client, "server", w.server, "err", err)
		return
	}
	r.held[w] = h
}

// connectBack begins to connect with the server as the client would.
func connectBack(w ways) (fd int, err error) {
	from, ok := other(w.client.Addr())
	to, okTo := other(w.server.Addr())
	if !ok || !okTo {
		return 0, unix.EADDRNOTAVAIL
	}
	port := w.client.Port()
	if port == w.server.Port() {
		port = 0 // the same ports at both ends would make this connection the answer to the other one
	}
	for {
		if fd, err = newSocket(from); err != nil {
			return 0, err
		}
		if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, port))); err == nil {
			err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, w.server.Port())))
		}
		if err == nil || err == unix.EINPROGRESS {
			return fd, nil
		}
		_ = unix.Close(fd)
		if port == 0 || err != unix.EADDRINUSE && err != unix.EADDRNOTAVAIL {
			return 0, err
		}
		port = 0
	}
}

// connected lets a SYN go on when it is known what becomes of the connection with the server.
func (r *reflector) connected(h *held) {
	r.forget(h.back)
	code, err := unix.GetsockoptInt(h.back, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code == 0 {
		h.made = true
		r.letGo(h, toReflector)
		return
	}
	_ = unix.Close(h.back)
	delete(r.held, h.ways)
	if unix.Errno(code) == unix.ECONNREFUSED {
		r.letGo(h, toNobody)
	}
	// Otherwise the client sends its SYN again.
}

// letGo has a SYN go on.
func (r *reflector) letGo(h *held, mark net.HardwareAddr) {
	copy(h.frame, r.mac)
	copy(h.frame[len(r.mac):], mark)
	if _, err := unix.Write(r.tap, h.frame); err != nil {
		r.log.Warn("a SYN is lost", "client", h.ways.client, "server", h.ways.server, "err", err)
	}
}

// expire ends what was held for too long.
func (r *reflector) expire(now time.Time) {
	for w, h := range r.held {
		if now.After(h.until) {
			if !h.made {
				r.forget(h.back)
			}
			closeReset(h.back)
			delete(r.held, w)
		}
	}
	for fd, until := range r.leaving {
		if now.After(until) {
			r.forget(fd)
			closeReset(fd)
		}
	}
}
