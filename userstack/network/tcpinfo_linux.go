// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"

	"smcr/internal/inetdiag"
	"smcr/nl"
)

// A TCPInfo is a TCP socket with what the kernel has counted.
type TCPInfo struct {
	nl.Connection
	Counted     bool   // false: the kernel does not say what follows, as for listening sockets
	Sent        uint64 // bytes that were sent, each once
	Received    uint64 // bytes that were received in order
	Retransmits uint64 // segments that were sent again
}

// Offsets in bytes of fields in struct tcp_info.
const (
	tcpInfoTotalRetrans = 100 // tcpi_total_retrans, 4 bytes
	tcpInfoAcked        = 120 // tcpi_bytes_acked, 8 bytes; with the SYN
	tcpInfoReceived     = 128 // tcpi_bytes_received, 8 bytes
	tcpInfoSent         = 200 // tcpi_bytes_sent, 8 bytes, since Linux 4.19; with what was sent again
	tcpInfoResent       = 208 // tcpi_bytes_retrans, 8 bytes
)

// EachInfo calls found for each TCP socket that a process has, with its counters.
func (d SockDiag) EachInfo(found func(TCPInfo)) error {
	return d.dump(1<<(inetdiag.AttrInfo-1), func(m inetdiag.Message) {
		if s, ok := tcpInfoOf(m); ok {
			found(s)
		}
	})
}

// tcpInfoOf returns a socket with its counters. It is not ok for one that no process has.
func tcpInfoOf(m inetdiag.Message) (s TCPInfo, ok bool) {
	if s.Connection, ok = connectionOf(m); !ok {
		return s, false
	}
	s.Cookie = m.ID.Cookie
	b := m.Attr(inetdiag.AttrInfo)
	if !s.Remote.IsValid() || len(b) < tcpInfoReceived+8 {
		return s, true
	}
	ne := binary.NativeEndian
	s.Counted, s.Retransmits = true, uint64(ne.Uint32(b[tcpInfoTotalRetrans:]))
	s.Received, s.Sent = ne.Uint64(b[tcpInfoReceived:]), ne.Uint64(b[tcpInfoAcked:])
	if len(b) >= tcpInfoResent+8 {
		sent, again := ne.Uint64(b[tcpInfoSent:]), ne.Uint64(b[tcpInfoResent:])
		s.Sent = sent - min(again, sent)
	}
	return s, true
}
