// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
)

// Device is a local RoCE port on the LAN of the group.
type Device struct {
	// ID tells devices apart; it means nothing to this package.
	ID   int
	Name string
	GID  smc.GID
	MAC  smc.MAC
	// MTU is the largest path MTU as an InfiniBand code (1 = 256 bytes to
	// 5 = 4096).
	MTU smc.MTU
	Up  bool
	// Subnet is not set if the GID is in the subnet of the TCP connections, or if it is
	// one of version 1. Otherwise it is the subnet of the GID: the port has the same pnetid as
	// theirs, but only the ports in Subnet are reached from it.
	Subnet netip.Prefix
}

// Endpoint is one end of a link.
type Endpoint struct {
	GID smc.GID
	MAC smc.MAC
	// QPN and PSN have 24 bits.
	QPN smc.QPN
	PSN smc.PSN
	// MTU is the path MTU as an InfiniBand code.
	MTU smc.MTU
	// UDPPort is the UDP port from which the queue pair sends with RoCE version 2, or 0 if
	// it is not known.
	UDPPort uint16
}

// ConnParams is what CLC ACCEPT and CONFIRM carry about one side of a
// connection (RFC 7609, appendix A.2.3).
type ConnParams struct {
	Link Endpoint
	// RKey and VAddr are those of the RMB on that link.
	RKey  smc.RKey
	VAddr uint64
	// Index is the number of the RMBE in its RMB, from 1.
	Index uint8
	// Token is the alert token, never 0.
	Token uint32
	// SizeCode is the size of an RMBE: 16 KiB << SizeCode.
	SizeCode smc.SizeCode
	// From is the peer's address on the TCP connection that carried the message.
	From netip.Addr
}

// maxSizeCode is the largest RMBE size code, 512 MiB.
const maxSizeCode = smc.MaxSizeCode

// Check reports values of the peer that are out of range, ErrInvalidParams: an
// index or alert token of 0, a size code above 15, a queue pair of 0 or more
// than 24 bits, a reserved MTU code. A peer that sends them is declined (RFC
// 7609, appendix C.6).
func (p ConnParams) Check() error {
	if p.Index == 0 || p.Token == 0 || p.SizeCode > maxSizeCode {
		return fmt.Errorf("%w: RMBE index %d, alert token %#x, size code %d", ErrInvalidParams, p.Index, p.Token, p.SizeCode)
	}
	return p.Link.check()
}

func (e Endpoint) check() error {
	if !e.MTU.Valid() || e.QPN == 0 || e.QPN > smc.Max24 || e.PSN > smc.Max24 {
		return fmt.Errorf("%w: queue pair %s, PSN %s, MTU code %d", ErrInvalidParams, e.QPN, e.PSN, e.MTU)
	}
	return nil
}

// Env gives a [Group] its resources. The calls are made inside the calls of
// the group, must not block and must not call the group.
type Env interface {
	// NewQP creates a queue pair for link on dev in state INIT with its
	// receives posted, and returns its local end.
	NewQP(link *Link, dev Device) (Endpoint, error)
	// ConnectQP takes it to RTR toward peer with path MTU mtu (a code).
	ConnectQP(link *Link, peer Endpoint, mtu smc.MTU) error
	// ReadyQP takes it to RTS.
	ReadyQP(link *Link) error
	// CloseQP destroys it. It is idempotent, and after it nothing remote
	// writes to memory through this link any more.
	CloseQP(link *Link)
	// NewRMB allocates size bytes of zeroed memory.
	NewRMB(size int) (mem []byte, handle any, err error)
	// RegisterRMB makes it writable for the peer of link. The same handle
	// is registered once for each link; two links on one device have
	// registrations of their own.
	RegisterRMB(handle any, link *Link) (rkey smc.RKey, vaddr uint64, err error)
	// DeregisterRMB undoes RegisterRMB.
	DeregisterRMB(handle any, link *Link)
	// ZeroRMB zeroes n bytes of an RMB from off before a connection uses them.
	ZeroRMB(handle any, off, n int)
	// TrimRMB may give the memory of n bytes back, whose content nobody needs
	// any more.
	TrimRMB(handle any, off, n int)
	// FreeRMB releases memory and whatever registrations are left.
	FreeRMB(handle any)
	// NewChunk gives a chunk of send memory of size bytes, readable by the
	// devices of all links. It is on the way of each message.
	NewChunk(size int) (*conn.Chunk, error)
	// FreeChunk takes it back. No open queue pair reads from it any more.
	// Actions that name it are for links that are closed.
	FreeChunk(k *conn.Chunk)
	// Random returns random bits for alert tokens and test data.
	Random() uint32
}

// Config describes a link group to [New].
type Config struct {
	Role smc.Role
	// Version is the version of SMC that the CLC messages agreed on: 1 or
	// 2. Zero means 1.
	Version uint8
	// PeerOS is the operating system that the peer named in version 2
	// (smc.OSLinux...). Linux deviates from the specification.
	PeerOS smc.OS
	// PeerRelease is the release of version 2 that the peer named with it.
	PeerRelease uint8
	// PeerOurs: the peer is a stack of this module, which names itself Linux.
	PeerOurs bool
	// Routed tells that a router is between the peers, for ADD LINK of
	// version 2.
	Routed bool
	// ID names the group locally and prefixes the user ids of its links.
	ID                  [4]byte
	LocalPeerID, PeerID smc.PeerID
	// PeerHost is the peer's address of the TCP connection of the first contact. A server
	// takes further connections from this address alone: see [Group.HasPort].
	PeerHost netip.Addr
	VLAN     uint16
	// Devices are the candidates for links; the first takes the first one.
	Devices []Device
	// MaxLinks is the largest number of symmetric links, 2 to 8. Less means
	// 2. One asymmetric link may come on top (RFC 7609, section 2.2.2). In
	// version 2 it is what the CLC messages agreed on, 1 or 2.
	MaxLinks int
	// MaxConns is the largest number of connections. Zero means 255.
	MaxConns int
	// SendQueue is the number of work requests that the queue pair of a
	// link takes. Zero means 48.
	SendQueue int
	// SendChunk is the least size in bytes of the chunks in which connections take
	// send memory. Zero means 64 KiB.
	SendChunk int
	// Autocork is how many bytes a connection holds back at most while one of
	// its messages is outstanding, and at most half of its send buffer. Zero
	// means 64 KiB; less means none.
	Autocork int
	// RMBEsPerRMB is how many connections share an RMB of the smaller size
	// classes, 1 to 255. Zero means 16.
	RMBEsPerRMB int
	// ProvePath has a full packet sent before CONFIRM LINK and before its reply: see
	// [firstContact.provePath].
	ProvePath bool
	// EyeCatcher makes a server's RMBEs begin with the four bytes of the
	// eye catcher (RFC 7609, section 4.2); cursors then start at 4.
	// Otherwise they start at 0, as in Linux, and CONFIRM LINK announces this. A
	// Linux client declines a server that has eye catchers. A client does the same as
	// the server. A server without eye catchers still uses them with a client
	// whose CONFIRM LINK shows that it does not know the other way.
	// Version 2 has none.
	EyeCatcher bool
	// Timers bound all waiting. The zero value means [DefaultTimers].
	Timers Timers
	// Log takes events of interest to an operator. Nil discards them.
	Log *slog.Logger
}

// Timers are the times after which a group stops waiting.
type Timers struct {
	conn.Timers // those of its connections
	// TestLink is the silence on a link after which TEST LINK is sent;
	// zero switches the tests off. TestLinkAnswer is how long the answer
	// may take before the link counts as failed, TestLinkBusy the same as long
	// as something else gets through: the answer comes behind it.
	TestLink, TestLinkAnswer, TestLinkBusy time.Duration
	// Idle is how long a group without connections is kept.
	Idle time.Duration
	// LLC is how long an answer to a request may take, or RKey over the last
	// link, and ConfirmLink how long the confirmation of an added link may.
	LLC, ConfirmLink time.Duration
	// RKey is how long the answer to CONFIRM RKEY and DELETE RKEY may take
	// until the link counts as failed (RFC 7609, appendix C.7.1). A peer with
	// much to send answers late: in Linux the answer waits up to 10 s for room
	// in the send queue. The transport reports a link that carries nothing any
	// more earlier than that.
	RKey time.Duration
	// DeleteLink is how long the server may take to delete a link that the
	// client has asked it to, until the link that the client asked over counts
	// as failed. Before Linux answers, it waits until all it has sent on the
	// link is completed or has failed, which takes 2 s or more.
	DeleteLink time.Duration
	// ConfirmFirst is how long the peer may take for each step of a first contact after
	// CONFIRM LINK, until data may be sent. It is longer than the time until a send fails
	// and the DECLINE for it arrives, because the TCP connection is reset after it
	// (RFC 7609, appendix C.7).
	ConfirmFirst time.Duration
	// FirstSend is how long the peer's adapter may take to acknowledge a message of a first
	// contact, and FirstAnswer how long the peer may take for CONFIRM LINK or its reply,
	// until the link counts as failed. DECLINE follows: data waits for it. Both must be less
	// than the 5 s after which Linux gives up a first contact. [Pace] sets them by
	// what is known about the peer.
	FirstSend, FirstAnswer time.Duration
	// SecondLink is how long a server waits in a first contact for the confirmation of the
	// second link. Data waits for that too.
	SecondLink time.Duration
	// Fresh is how long after the last sign of the peer a link counts as alive for a new
	// connection. After that, the connection waits for a sign, at most ProofWait: it is
	// then declined, and the group takes no others until there is a sign. Zero switches
	// this off.
	Fresh, ProofWait time.Duration
	// LLCStart is how long an exchange may wait for others to end.
	LLCStart time.Duration
	// AddLinkRetry is how long the server waits before it tries again to
	// add a link after an attempt failed or was rejected; zero means only
	// when a device comes up.
	AddLinkRetry time.Duration
	// AddLinkPause and DeleteLinkPause are how long the server waits with ADD LINK and with DELETE
	// LINK after an exchange of links, however it ended, if the peer may be Linux. Linux rejects or
	// drops a request while it still ends the exchange before, which takes some 100 ms. A deletion
	// waits less, because connections may be on the link.
	AddLinkPause, DeleteLinkPause time.Duration
	// Terminate is how long the message that deletes all links may take.
	Terminate time.Duration
	// RMBIdle is how long an RMB without connections is kept.
	RMBIdle time.Duration
}

// AllowSilence lets the peer be silent for the time d: no time after which a link counts as
// failed is shorter. d should be how long the queue pairs wait for the peer.
func (t *Timers) AllowSilence(d time.Duration) {
	for _, x := range []*time.Duration{&t.TestLinkAnswer, &t.TestLinkBusy, &t.LLC, &t.ConfirmLink, &t.RKey, &t.DeleteLink} {
		*x = max(*x, d)
	}
}

// How long a first contact waits for signs over RDMA, if nothing is known about the peer.
// A queue pair of package softroce sends a packet again after 20, 60, 140 and 300 ms, so
// FirstSend has five attempts, the last with 150 ms for its answer. With a loss of 5 % in
// both directions, one first contact in 100,000 fails. A client waits longer than a
// server, so that the server's DECLINE comes first. All of it, with the round trips of TCP,
// takes less than a second.
const (
	FirstSend         = 450 * time.Millisecond // Timers.FirstSend
	FirstAnswerServer = 550 * time.Millisecond // Timers.FirstAnswer of a server
	FirstAnswerClient = 600 * time.Millisecond // Timers.FirstAnswer of a client
)

// DefaultTimers returns the times that Linux uses, if Linux has such a time.
func DefaultTimers(role smc.Role) Timers {
	t := Timers{
		Timers: conn.Timers{
			CloseWait:     60 * time.Second,
			AbortWait:     10 * time.Second,
			UrgentWait:    60 * time.Second,
			TCPGrace:      2 * time.Second,
			TCPGraceAlive: 10 * time.Second,
		},
		TestLink:        30 * time.Second,
		TestLinkAnswer:  2 * time.Second,
		TestLinkBusy:    12 * time.Second,
		Idle:            600 * time.Second,
		LLC:             2 * time.Second,
		RKey:            12 * time.Second,
		DeleteLink:      12 * time.Second,
		ConfirmLink:     5 * time.Second,
		ConfirmFirst:    10 * time.Second,
		FirstSend:       FirstSend,
		FirstAnswer:     FirstAnswerServer,
		SecondLink:      time.Second,
		ProofWait:       FirstSend,
		LLCStart:        20 * time.Second,
		Terminate:       2 * time.Second,
		AddLinkRetry:    300 * time.Second,
		AddLinkPause:    time.Second,
		DeleteLinkPause: 250 * time.Millisecond,
		RMBIdle:         60 * time.Second,
	}
	if role == smc.Client {
		// Later than the server, so that the server ends the group in order, and
		// declines a first contact.
		t.Idle = 610 * time.Second
		t.FirstAnswer = FirstAnswerClient
	}
	return t
}
