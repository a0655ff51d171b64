// SPDX-License-Identifier: Apache-2.0

package rdmaverbs

import (
	"errors"
	"fmt"
	"io"
	"net"

	"smcr/smc"
)

// Errors of providers. The documentation of each interface says which call
// returns which error; providers wrap them with details, so test with
// errors.Is.
var (
	// ErrNoDevice means that there is no device of this name, or that its netdev is gone.
	ErrNoDevice = errors.New("rdmaverbs: no such device")
	// ErrClosed means that the object, or its device, was closed before.
	ErrClosed = errors.New("rdmaverbs: object is closed")
	// ErrQueueFull means that the send queue or the receive queue has no room.
	ErrQueueFull = errors.New("rdmaverbs: work queue is full")
	// ErrBadState means that the state of the queue pair does not allow the call.
	ErrBadState = errors.New("rdmaverbs: queue pair is in the wrong state")
	// ErrInvalid means that an argument is wrong.
	ErrInvalid = errors.New("rdmaverbs: invalid argument")
	// ErrNoResources means that a limit in DeviceAttr is reached.
	ErrNoResources = errors.New("rdmaverbs: out of resources")
	// ErrBusy means that other objects still use the object, so it cannot be closed.
	ErrBusy = errors.New("rdmaverbs: object is in use")
)

// Access is a set of rights to a memory region or a queue pair.
type Access uint8

// Access rights. Local read is always granted.
const (
	AccessLocalWrite  Access = 1 << 0 // the device may write: receive requests, RDMA READ responses
	AccessRemoteWrite Access = 1 << 1 // the peer may use RDMA WRITE; needs AccessLocalWrite
	AccessRemoteRead  Access = 1 << 2 // the peer may use RDMA READ
)

// A PD is a protection domain: a queue pair can only access memory regions of
// the same domain. Close returns ErrBusy while the domain has queue pairs or
// memory regions, and ErrClosed if it is closed.
type PD interface {
	io.Closer
	// RegisterMR registers buf. The region's bytes are buf itself: remote
	// writes appear in it. buf must not move or be freed before the region is
	// closed; allocate it with AllocBuffer. A device without
	// DeviceAttr.OnDemandPaging pins the pages of buf until the region is closed,
	// as ibv_reg_mr does. It returns ErrInvalid if buf is
	// empty or access has remote write without local write, ErrNoResources at
	// DeviceAttr.MaxMR, and ErrClosed.
	RegisterMR(buf []byte, access Access) (MR, error)
	// CreateQP creates a reliable connected queue pair in state QPSInit. It
	// returns ErrInvalid for a wrong field of init, ErrNoResources at
	// DeviceAttr.MaxQP, and ErrClosed if the domain, a completion queue or the
	// device is closed.
	CreateQP(init QPInit) (QP, error)
}

// Sharded is an optional interface of a PD, for devices that several threads
// serve.
type Sharded interface {
	// SetShard selects the thread for queue pairs that are created later: n
	// modulo the number of threads.
	SetShard(n int)
}

// An MR is a registered memory region. Close waits until the device does not
// access the memory any more. A second Close returns ErrClosed.
type MR interface {
	io.Closer
	// LKey returns the local key of the region.
	LKey() uint32
	// RKey returns the remote key, with which a peer accesses the region.
	RKey() uint32
	// Addr returns the address with which the peer names the first byte in RDMA
	// operations. It need not be an address of the process.
	Addr() uint64
	// Len returns the length in bytes.
	Len() int
}

// QPInit configures a queue pair at creation.
type QPInit struct {
	SendCQ, RecvCQ CQ
	MaxSend        int    // length of the send queue, in work requests
	MaxRecv        int    // length of the receive queue, in work requests
	Port           int    // port number, from 1
	SGIDIndex      int    // index of the source GID in the GID table of the port
	Access         Access // what the peer may do over this queue pair
	// Trace may show the packets of the queue pair, with Tag. It may be nil. Devices without
	// packets, because hardware makes them, ignore it.
	Trace *PacketTrace
	Tag   uint64
}

// QPState is the state of a queue pair.
type QPState uint8

// Queue pair states.
const (
	QPReset QPState = iota // not used by this interface
	QPSInit                // created: it takes receive requests
	QPSRTR                 // ready to receive
	QPSRTS                 // ready to send
	QPSErr                 // failed or closed: requests complete with StatusFlushErr
)

// PathInfo describes the path from a queue pair to its peer (ibv_qp_attr for
// RTR and RTS).
type PathInfo struct {
	DGID      smc.GID
	DMAC      net.HardwareAddr // MAC address of the peer or the next hop; nil: the provider resolves it
	DQPN      uint32           // 24 bits
	RQPSN     uint32           // first PSN expected from the peer, 24 bits
	SQPSN     uint32           // first PSN sent, 24 bits
	PathMTU   smc.MTU
	HopLimit  uint8 // 0: the default of the provider
	Timeout   uint8 // local ACK timeout, 4.096 us * 2^Timeout; 0: no timeout
	RetryCnt  uint8 // transport retries, 0..7
	RNRRetry  uint8 // RNR NAK retries, 0..6; 7 is unlimited
	MinRNR    uint8 // minimum RNR NAK timer code, 0..31 (IB specification, table 45)
	MaxRdAtom uint8 // RDMA READs outstanding as requester
	MaxDestRd uint8 // RDMA READs outstanding as responder
	// UDPPort is the UDP port from which the peer sends, with RoCE version 2; 0 if it is
	// not known. A provider that can tell the ports of packets apart drops those that come
	// from another port.
	UDPPort uint16
}

// A QP is a reliable connected queue pair. Close flushes it and frees it; a
// second Close, and each other call after it that returns an error, returns
// ErrClosed.
type QP interface {
	io.Closer
	// QPN returns the queue pair number: 24 bits, never 0 or 1.
	QPN() uint32
	// State returns the present state.
	State() QPState
	// ToRTR moves the queue pair from Init to ready-to-receive. All fields of
	// path must be set; SQPSN may be 0. It returns ErrInvalid for a wrong path,
	// and ErrBadState if the state is not QPSInit.
	ToRTR(path PathInfo) error
	// ToRTS moves the queue pair from ready-to-receive to ready-to-send. It
	// returns ErrInvalid for a wrong path, and ErrBadState if the state is not
	// QPSRTR.
	ToRTS(path PathInfo) error
	// ToError moves the queue pair to the error state. Outstanding work
	// requests complete with StatusFlushErr.
	ToError() error
	// PostRecv adds receive work requests. n is the number of requests that
	// were posted; after an error these are the ones before the first wrong
	// request. It returns ErrQueueFull or ErrInvalid.
	PostRecv(wr ...RecvWR) (n int, err error)
	// PostSend adds send work requests. n is the number of requests that were
	// posted; after an error these are the ones before the first wrong request.
	// It does not keep wr. It returns ErrQueueFull, ErrInvalid, or ErrBadState
	// if the state is neither QPSRTS nor QPSErr.
	PostSend(wr ...SendWR) (n int, err error)
}

// A UDPSender is a QP that knows from which port it sends.
type UDPSender interface {
	QP
	// UDPPort returns the UDP port from which the queue pair sends all packets, with
	// RoCE version 2, and 0 with version 1. No other program of the host can send from
	// this port as long as the device is open.
	UDPPort() uint16
}

// A QPResentCounter is a QP that counts what it sends again.
type QPResentCounter interface {
	QP
	// Resent returns the counts since the queue pair was created.
	Resent() Resent
}

// SGE is a scatter/gather entry, a piece of local memory: Len bytes at offset
// Off of MR.
type SGE struct {
	MR  MR
	Off int
	Len int
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID uint64
	SG SGE // memory for an incoming SEND; zero for none
	// More is the memory for the rest of a SEND that is longer than SG; zero
	// for none. If long messages are rare, most of this memory is never written
	// to.
	More SGE
}

// Opcode is the operation of a send work request.
type Opcode uint8

// Send operations.
const (
	OpSend     Opcode = iota + 1 // SEND
	OpSendImm                    // SEND with immediate data
	OpWrite                      // RDMA WRITE
	OpWriteImm                   // RDMA WRITE with immediate data
	OpRead                       // RDMA READ
)

// SendFlags modify a send work request.
type SendFlags uint8

// Send flags.
const (
	// Signaled requests a completion. Without it, a request only completes visibly if it fails.
	Signaled SendFlags = 1 << 0
	// Solicited sets the solicited event bit in the last packet.
	Solicited SendFlags = 1 << 1
	// Inline copies InlineData during the call. SG is not used.
	Inline SendFlags = 1 << 2
)

// SendWR is a send work request.
type SendWR struct {
	ID         uint64
	Op         Opcode
	Flags      SendFlags
	SG         [2]SGE // up to two pieces, used in order; unused entries are zero
	InlineData []byte // payload with Inline: at most 256 bytes
	Imm        uint32 // immediate data of OpSendImm and OpWriteImm
	RemoteAddr uint64 // address in a memory region of the peer, for OpWrite, OpWriteImm and OpRead
	RKey       uint32 // remote key for RemoteAddr
}

// WCStatus is the completion status of a work request (ibv_wc_status).
type WCStatus uint8

// Completion statuses. They mean the same as those of libibverbs.
const (
	StatusSuccess        WCStatus = iota // done
	StatusLocLenErr                      // a message was longer than the memory for it
	StatusLocQPOpErr                     // the queue pair cannot do what was asked
	StatusLocProtErr                     // a local memory region does not allow it
	StatusFlushErr                       // the queue pair is in the error state
	StatusBadRespErr                     // the peer answered something that is not possible
	StatusLocAccessErr                   // a request of the peer had no access to local memory
	StatusRemInvReqErr                   // the peer found the request invalid
	StatusRemAccessErr                   // the peer gives no access to its memory
	StatusRemOpErr                       // the peer could not carry the request out
	StatusRetryExcErr                    // the peer did not answer
	StatusRNRRetryExcErr                 // the peer had no receive request
	StatusFatalErr                       // the device has failed
)

var statusText = [...]string{
	StatusSuccess:        "success",
	StatusLocLenErr:      "local length error",
	StatusLocQPOpErr:     "local queue pair operation error",
	StatusLocProtErr:     "local protection error",
	StatusFlushErr:       "flushed",
	StatusBadRespErr:     "bad response",
	StatusLocAccessErr:   "local access error",
	StatusRemInvReqErr:   "remote invalid request",
	StatusRemAccessErr:   "remote access error",
	StatusRemOpErr:       "remote operation error",
	StatusRetryExcErr:    "transport retries exceeded",
	StatusRNRRetryExcErr: "receiver-not-ready retries exceeded",
	StatusFatalErr:       "fatal error",
}

// String returns the text for s, or its number if s is not known.
func (s WCStatus) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Err returns nil for StatusSuccess, and otherwise a *CompletionError.
func (s WCStatus) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return &CompletionError{Status: s}
}

// A CompletionError is the error of a work request that failed.
type CompletionError struct{ Status WCStatus }

func (e *CompletionError) Error() string { return "rdmaverbs: " + e.Status.String() }

// WCOp is the operation that completed (ibv_wc_opcode).
type WCOp uint8

// Completed operations.
const (
	WCSend         WCOp = iota + 1 // a SEND
	WCWrite                        // an RDMA WRITE
	WCRead                         // an RDMA READ
	WCRecv                         // a SEND was received
	WCRecvWriteImm                 // an RDMA WRITE with immediate data was received
)

// WC is a work completion. If Status is not StatusSuccess, only ID, Status and
// QPN are valid.
type WC struct {
	ID     uint64
	Status WCStatus
	Op     WCOp
	QPN    uint32
	Len    int    // bytes received
	Imm    uint32 // valid if HasImm
	HasImm bool
}

// A CQ is a completion queue. Close returns ErrBusy while a queue pair uses it,
// and ErrClosed if it is closed.
//
// The provider calls the notify function of CreateCQ after it added completions
// to an empty queue. It does so in any goroutine, with no lock held. notify may
// call Poll and post work requests, but it must not wait for other completions.
// There may be calls without a completion, and concurrent calls. A consumer
// that polls until Poll returns 0 misses no completion.
type CQ interface {
	io.Closer
	// Poll removes up to len(wc) completions from the queue, oldest first,
	// stores them in wc, and returns their number.
	Poll(wc []WC) int
}
