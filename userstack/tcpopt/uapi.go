// SPDX-License-Identifier: Apache-2.0

package tcpopt

// Offsets in bytes of the context of a SOCK_OPS program (struct bpf_sock_ops).
// All fields but sk are 32 bits wide.
const (
	opsOp        = 0  // which callback
	opsArg0      = 4  // args[0]
	opsFamily    = 20 // AF_INET, AF_INET6
	opsRemoteIP4 = 24 // network byte order
	opsLocalIP4  = 28 // network byte order
	opsRemoteIP6 = 32 // network byte order, 16 bytes
	opsLocalIP6  = 48 // network byte order, 16 bytes
	opsLocalPort = 68 // host byte order
	opsFullSock  = 72 // 0: request socket
	opsCBFlags   = 84
	opsSk        = 184 // pointer, nil for a request socket
	opsSkbLen    = 208
	opsTCPFlags  = 212 // of the segment of the callback
)

// Callbacks of a SOCK_OPS program (bpf_sock_ops.op).
const (
	cbTCPConnect         = 3
	cbActiveEstablished  = 4
	cbPassiveEstablished = 5
	cbState              = 10 // args[0] is the old state
	cbTCPListen          = 11
	cbHdrOptLen          = 14
	cbWriteHdrOpt        = 15
)

// The callbacks that a socket has asked for (bpf_sock_ops_cb_flags).
const (
	cbFlagState       = 1 << 2
	cbFlagWriteHdrOpt = 1 << 6
)

// synAckCookie is args[0] of the header option callbacks for a SYN-ACK with a
// SYN cookie.
const synAckCookie = 2

// loadFromSYN makes bpf_load_hdr_opt search the SYN that the peer sent.
const loadFromSYN = 1

// Offsets in bytes of the context of a setsockopt program (struct bpf_sockopt).
const (
	soSk      = 0  // pointer
	soLevel   = 24 // 32 bits, like those that follow
	soOptname = 28
	soOptlen  = 32
)

// Offsets in bytes in struct bpf_sock; all fields are 32 bits wide.
const (
	sockFamily    = 4
	sockLocalIP4  = 24 // network byte order
	sockLocalIP6  = 28 // network byte order, 16 bytes
	sockLocalPort = 44 // host byte order
	sockState     = 72
)

// tcpBPFSockOpsCBFlags is the option of bpf_setsockopt, level IPPROTO_TCP, that
// sets the callback flags of a socket (Linux 6.12).
const tcpBPFSockOpsCBFlags = 1008

// tcpFlagSYN is the SYN bit of the TCP header's flags.
const tcpFlagSYN = 0x02
