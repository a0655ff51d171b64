// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"smcr/smc"
)

// Numbers of NETLINK_SOCK_DIAG.
const (
	sockDiagByFamily = 20 // message type of request and answer
	afInet           = 2
	afInet6          = 10
	afSMC            = 43

	diagRequestLen  = 52  // struct smc_diag_req
	diagMessageLen  = 64  // struct smc_diag_msg
	diagConnInfoLen = 76  // struct smc_diag_conninfo
	diagLgrInfoLen  = 147 // struct smc_diag_lgrinfo
	diagDMBInfoLen  = 40  // struct smcd_diag_dmbinfo without extended GIDs
	diagDMBExtLen   = 56  // struct smcd_diag_dmbinfo with extended GIDs

	diagExtConnInfo = 1 << (attrDiagConnInfo - 1)
	diagExtLgrInfo  = 1 << (attrDiagLgrInfo - 1)
	diagExtDMBInfo  = 1 << (attrDiagDMBInfo - 1)
)

// appendDiagRequest appends a request for all SMC sockets. ext are the requested
// extensions.
func appendDiagRequest(b []byte, ext uint8) []byte {
	b = append(b, afSMC, 0, 0, ext)
	return append(b, make([]byte, diagRequestLen-4)...)
}

// parseDiagRequest returns the extensions that a request asks for.
func parseDiagRequest(b []byte) (ext uint8, err error) {
	if len(b) < diagRequestLen {
		return 0, fmt.Errorf("nl: sock_diag request has %d bytes, not %d", len(b), diagRequestLen)
	}
	if b[0] != afSMC {
		return 0, fmt.Errorf("nl: sock_diag request for address family %d, not AF_SMC", b[0])
	}
	return b[3], nil
}

// appendDiag appends the answer for one socket: the fixed part, then the attributes.
// Ports are in network order, everything else is in host order.
func (c *Connection) appendDiag(b []byte, ext uint8) ([]byte, error) {
	ne := binary.NativeEndian
	family := uint8(afSMC)
	if c.Local.Addr().Is6() || c.Remote.Addr().Is6() {
		// The kernel does not distinguish the address families since Linux 4.20. A stack
		// in user space does if the address alone is ambiguous.
		family = afInet6
	}
	b = append(b, family, uint8(c.State), uint8(c.Mode), 0)
	b = binary.BigEndian.AppendUint16(b, c.Local.Port())
	b = binary.BigEndian.AppendUint16(b, c.Remote.Port())
	for _, ap := range []netip.AddrPort{c.Local, c.Remote} {
		var a [16]byte
		copy(a[:], ap.Addr().AsSlice())
		b = append(b, a[:]...)
	}
	b = ne.AppendUint32(b, c.NetDev)
	b = ne.AppendUint64(b, c.Cookie)
	b = ne.AppendUint32(b, c.UID)
	b = ne.AppendUint64(b, c.Inode)

	return appendAttrs(b, &diagAttrs{c, ext})
}

// parseDiag parses the answer for one socket.
func parseDiag(b []byte) (Connection, error) {
	if len(b) < diagMessageLen {
		return Connection{}, fmt.Errorf("nl: sock_diag message has %d bytes, not %d", len(b), diagMessageLen)
	}
	ne, be := binary.NativeEndian, binary.BigEndian
	c := Connection{
		State:  smc.ConnState(b[1]),
		Mode:   Mode(b[2]),
		Local:  diagAddr(b[0], [16]byte(b[8:24]), be.Uint16(b[4:])),
		Remote: diagAddr(b[0], [16]byte(b[24:40]), be.Uint16(b[6:])),
		NetDev: ne.Uint32(b[40:]),
		Cookie: ne.Uint64(b[44:]),
		UID:    ne.Uint32(b[52:]),
		Inode:  ne.Uint64(b[56:]),
	}
	return c, unmarshalAttrs(b[diagMessageLen:], &diagAttrs{&c, 0xff})
}

// diagAddr returns the address in a sock_diag answer. Recent kernels give AF_SMC as the
// family of all addresses. An address whose last twelve bytes are zero is then an IPv4
// address.
func diagAddr(family uint8, a [16]byte, port uint16) netip.AddrPort {
	addr := netip.AddrFrom16(a)
	if family == afInet || family != afInet6 && [12]byte(a[4:]) == [12]byte{} {
		addr = netip.AddrFrom4([4]byte(a[:4]))
	}
	if addr.IsUnspecified() && port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, port)
}

// diagAttrs is the variable part of the answer for a socket.
type diagAttrs struct {
	*Connection
	ext uint8 // extensions to encode
}

func (d *diagAttrs) encode(ae *attrEncoder) {
	ae.Uint8(attrDiagShutdown, uint8(d.Shutdown))
	ne := binary.NativeEndian
	at := ae.begin(attrDiagFallback)
	ae.b = ne.AppendUint32(ne.AppendUint32(ae.b, d.Fallback.Reason), d.Fallback.Peer)
	ae.end(at)
	if d.Info != nil && d.ext&diagExtConnInfo != 0 {
		at := ae.begin(attrDiagConnInfo)
		ae.b = d.Info.append(ae.b)
		ae.end(at)
	}
	if d.Link != nil && d.ext&diagExtLgrInfo != 0 {
		at := ae.begin(attrDiagLgrInfo)
		ae.b = d.Link.append(ae.b)
		ae.end(at)
	}
	if d.DMB != nil && d.ext&diagExtDMBInfo != 0 {
		at := ae.begin(attrDiagDMBInfo)
		ae.b = d.DMB.append(ae.b)
		ae.end(at)
	}
	if d.LinkGroup != 0 {
		ae.Uint32(attrDiagLinkGroup, uint32(d.LinkGroup))
	}
	if d.PID != 0 {
		ae.Uint32(attrDiagPID, d.PID)
	}
	if d.Command != "" {
		limited(ae, attrDiagCommand, d.Command, 64)
	}
	if d.TXBytes|d.RXBytes != 0 {
		ae.Uint64(attrDiagTXBytes, d.TXBytes)
		ae.Uint64(attrDiagRXBytes, d.RXBytes)
	}
}

func (d *diagAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrDiagShutdown:
			d.Shutdown = Shutdown(number8(ad))
		case attrDiagFallback:
			if b := fixed(ad, 8); b != nil {
				d.Fallback.Reason = binary.NativeEndian.Uint32(b)
				d.Fallback.Peer = binary.NativeEndian.Uint32(b[4:])
			}
		case attrDiagConnInfo:
			if b := fixed(ad, diagConnInfoLen); b != nil {
				d.Info = parseConnInfo(b)
			}
		case attrDiagLgrInfo:
			if b := fixed(ad, diagLgrInfoLen); b != nil {
				d.Link = parseConnLink(b)
			}
		case attrDiagDMBInfo:
			if b := fixed(ad, diagDMBInfoLen); b != nil {
				d.DMB = parseConnDMB(b)
			}
		case attrDiagLinkGroup:
			d.LinkGroup = LinkGroupID(number32(ad))
		case attrDiagPID:
			d.PID = number32(ad)
		case attrDiagCommand:
			d.Command = text(ad)
		case attrDiagTXBytes:
			d.TXBytes = number(ad)
		case attrDiagRXBytes:
			d.RXBytes = number(ad)
		}
	}
	return ad.Err()
}

// fixed returns the current attribute if it has at least n bytes: later kernels may add
// bytes at the end. Otherwise the decoder fails.
func fixed(ad *attrDecoder, n int) []byte {
	b := ad.Bytes()
	if len(b) < n {
		ad.fail(fmt.Errorf("nl: sock_diag attribute %d has %d bytes, not %d", ad.Type(), len(b), n))
		return nil
	}
	return b
}

func appendCursor(b []byte, c Cursor) []byte {
	b = append(b, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, c.Wrap)
	return binary.NativeEndian.AppendUint32(b, c.Count)
}

func parseCursor(b []byte) Cursor {
	return Cursor{Wrap: binary.NativeEndian.Uint16(b[2:]), Count: binary.NativeEndian.Uint32(b[4:])}
}

func (i *ConnInfo) append(b []byte) []byte {
	for _, v := range []uint32{i.Token, i.Sndbuf, i.RMBE, i.PeerRMBE} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	for _, c := range []Cursor{i.RXProd, i.RXCons, i.TXProd, i.TXCons} {
		b = appendCursor(b, c)
	}
	b = append(b, i.RXProdFlags, i.RXStateFlags, i.TXProdFlags, i.TXStateFlags)
	for _, c := range []Cursor{i.TXPrep, i.TXSent, i.TXFin} {
		b = appendCursor(b, c)
	}
	return b
}

// parseConnInfo parses at least diagConnInfoLen bytes.
func parseConnInfo(b []byte) *ConnInfo {
	ne := binary.NativeEndian
	return &ConnInfo{
		Token:        ne.Uint32(b[0:]),
		Sndbuf:       ne.Uint32(b[4:]),
		RMBE:         ne.Uint32(b[8:]),
		PeerRMBE:     ne.Uint32(b[12:]),
		RXProd:       parseCursor(b[16:]),
		RXCons:       parseCursor(b[24:]),
		TXProd:       parseCursor(b[32:]),
		TXCons:       parseCursor(b[40:]),
		RXProdFlags:  b[48],
		RXStateFlags: b[49],
		TXProdFlags:  b[50],
		TXStateFlags: b[51],
		TXPrep:       parseCursor(b[52:]),
		TXSent:       parseCursor(b[60:]),
		TXFin:        parseCursor(b[68:]),
	}
}

// appendFixedString appends s, cut or padded to n bytes. The last byte is NUL.
func appendFixedString(b []byte, s string, n int) []byte {
	at := len(b)
	b = slices.Grow(b, n)[:at+n]
	clear(b[at+copy(b[at:at+n-1], s):])
	return b
}

func parseFixedString(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

func (l *ConnLink) append(b []byte) []byte {
	b = append(b, l.LinkID)
	b = appendFixedString(b, l.IBDev, 64)
	b = append(b, l.IBPort)
	b = appendFixedString(b, l.GID.String(), 40)
	b = appendFixedString(b, l.PeerGID.String(), 40)
	return append(b, uint8(l.Role))
}

// parseConnLink parses at least diagLgrInfoLen bytes.
func parseConnLink(b []byte) *ConnLink {
	return &ConnLink{
		LinkID:  b[0],
		IBDev:   parseFixedString(b[1:65]),
		IBPort:  b[65],
		GID:     lenientGID(parseFixedString(b[66:106])),
		PeerGID: lenientGID(parseFixedString(b[106:146])),
		Role:    smc.Role(b[146]),
	}
}

func (d *ConnDMB) append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, d.LinkID)
	b = append(b, 0, 0, 0, 0)
	for _, v := range []uint64{d.PeerGID, d.GID, d.Token, d.PeerToken, d.PeerExtGID, d.ExtGID} {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

// parseConnDMB parses at least diagDMBInfoLen bytes.
func parseConnDMB(b []byte) *ConnDMB {
	ne := binary.NativeEndian
	d := &ConnDMB{
		LinkID:    ne.Uint32(b),
		PeerGID:   ne.Uint64(b[8:]),
		GID:       ne.Uint64(b[16:]),
		Token:     ne.Uint64(b[24:]),
		PeerToken: ne.Uint64(b[32:]),
	}
	if len(b) >= diagDMBExtLen {
		d.PeerExtGID, d.ExtGID = ne.Uint64(b[40:]), ne.Uint64(b[48:])
	}
	return d
}
