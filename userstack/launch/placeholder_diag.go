// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// diagAnswer has the fields of struct inet_diag_msg that are needed.
type diagAnswer struct {
	state uint8
	inode uint32 // 0: no process has it
}

// Sizes of linux/netlink.h and linux/inet_diag.h.
const (
	nlmsgHeaderLen = 16
	diagRequestLen = 56 // struct inet_diag_req_v2
	diagAnswerLen  = 72 // struct inet_diag_msg
	sockDiagFamily = 20 // SOCK_DIAG_BY_FAMILY
)

// diagRequest returns a request for the socket with these addresses.
func diagRequest(local, remote netip.AddrPort, dev uint32) []byte {
	ne, be := binary.NativeEndian, binary.BigEndian
	b := make([]byte, nlmsgHeaderLen+diagRequestLen)
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint16(b[4:], sockDiagFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[nlmsgHeaderLen:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	if local.Addr().Is6() {
		r[0] = unix.AF_INET6
	}
	ne.PutUint32(r[4:], ^uint32(0)) // any state
	be.PutUint16(r[8:], local.Port())
	be.PutUint16(r[10:], remote.Port())
	copy(r[12:28], local.Addr().AsSlice())
	copy(r[28:44], remote.Addr().AsSlice())
	ne.PutUint32(r[44:], dev)
	ne.PutUint64(r[48:], ^uint64(0)) // any cookie
	return b
}

// parseDiag parses the answer to a diagRequest.
func parseDiag(b []byte) (diagAnswer, error) {
	ne := binary.NativeEndian
	if len(b) < nlmsgHeaderLen {
		return diagAnswer{}, unix.EBADMSG
	}
	switch m := b[nlmsgHeaderLen:]; ne.Uint16(b[4:]) {
	case unix.NLMSG_ERROR:
		if len(m) < 4 {
			return diagAnswer{}, unix.EBADMSG
		}
		return diagAnswer{}, unix.Errno(-int32(ne.Uint32(m)))
	case sockDiagFamily:
		if len(m) < diagAnswerLen {
			return diagAnswer{}, unix.EBADMSG
		}
		return diagAnswer{m[1], ne.Uint32(m[68:])}, nil
	}
	return diagAnswer{}, unix.EBADMSG
}

// diagExact asks sock_diag for one socket of the launcher's network namespace.
func diagExact(local, remote netip.AddrPort, dev uint32) (diagAnswer, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return diagAnswer{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, diagRequest(local, remote, dev), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return diagAnswer{}, os.NewSyscallError("send", err)
	}
	var b [1024]byte
	// The kernel has answered before the request returned.
	n, _, err := unix.Recvfrom(s, b[:], unix.MSG_DONTWAIT)
	if err != nil {
		return diagAnswer{}, os.NewSyscallError("recv", err)
	}
	return parseDiag(b[:n])
}
