// SPDX-License-Identifier: Apache-2.0

package rdmaverbs

import (
	"errors"
	"fmt"
	"io"
	"net"

	"smcr/smc"
)

// Errors that providers wrap.
var (
	ErrNoDevice    = errors.New("rdmaverbs: no such device")
	ErrClosed      = errors.New("rdmaverbs: object is closed")
	ErrQueueFull   = errors.New("rdmaverbs: work queue is full")
	ErrBadState    = errors.New("rdmaverbs: queue pair is in the wrong state")
	ErrInvalid     = errors.New("rdmaverbs: invalid argument")
	ErrNoResources = errors.New("rdmaverbs: out of resources")
	ErrBusy        = errors.New("rdmaverbs: object is in use")
)

// Access is a set of rights to a memory region or a queue pair.
type Access uint8

// Access rights. Local read is always granted.
const (
	AccessLocalWrite  Access = 1 << 0
	AccessRemoteWrite Access = 1 << 1
	AccessRemoteRead  Access = 1 << 2
)

// A PD is a protection domain: queue pairs reach only memory regions of
// their own domain. Close fails with ErrBusy while it has any of them.
type PD interface {
	io.Closer
	// RegisterMR registers buf. The region's bytes are buf itself: remote
	// writes appear in it. buf must stay reachable and unmoved until the
	// region is closed (allocate it with AllocBuffer).
	RegisterMR(buf []byte, access Access) (MR, error)
	// CreateQP creates a reliable-connected queue pair in state Init.
	CreateQP(init QPInit) (QP, error)
}

// Sharded is implemented by the protection domains of devices that several threads
// serve.
type Sharded interface {
	// SetShard chooses the thread for the queue pairs that are made from now on:
	// n modulo the number of threads.
	SetShard(n int)
}

// An MR is a registered memory region.
type MR interface {
	io.Closer
	// LKey is the key for local use in an SGE.
	LKey() uint32
	// RKey is the key a remote peer presents.
	RKey() uint32
	// Addr is the virtual address of the region's first byte, as a remote
	// peer names it.
	Addr() uint64
	// Len is the length in bytes.
	Len() int
}

// QPInit configures a queue pair at creation.
type QPInit struct {
	SendCQ, RecvCQ CQ
	MaxSend        int    // send work requests outstanding
	MaxRecv        int    // receive work requests outstanding
	Port           int    // port number, from 1
	SGIDIndex      int    // entry of the port's GID table to send from
	Access         Access // what the peer may do over this queue pair
}

// QPState is the state of a queue pair.
type QPState uint8

// Queue pair states.
const (
	QPReset QPState = iota
	QPSInit
	QPSRTR // ready to receive
	QPSRTS // ready to send
	QPSErr
)

// PathInfo leads a queue pair to its peer: everything for RTR and RTS.
type PathInfo struct {
	DGID      smc.GID
	DMAC      net.HardwareAddr // peer's (or next hop's) MAC; nil asks the provider to resolve it
	DQPN      uint32           // 24 bits
	RQPSN     uint32           // first PSN expected from the peer, 24 bits
	SQPSN     uint32           // first PSN sent, 24 bits
	PathMTU   smc.MTU
	HopLimit  uint8 // 0 means the provider's default for a direct path
	Timeout   uint8 // local ACK timeout, 4.096 us * 2^Timeout; 0 means none
	RetryCnt  uint8 // transport retries, 0..7
	RNRRetry  uint8 // RNR NAK retries, 0..6; 7 is unlimited
	MinRNR    uint8 // minimum RNR NAK timer code, 0..31 (IB specification, table 45)
	MaxRdAtom uint8 // RDMA READs outstanding as requester
	MaxDestRd uint8 // RDMA READs outstanding as responder
}

// A QP is a reliable-connected queue pair.
type QP interface {
	io.Closer
	// QPN is the queue pair number, 24 bits, never 0 or 1.
	QPN() uint32
	// State returns the state now.
	State() QPState
	// ToRTR moves Init to ready-to-receive: path is complete but for SQPSN.
	ToRTR(path PathInfo) error
	// ToRTS moves ready-to-receive to ready-to-send.
	ToRTS(path PathInfo) error
	// ToError moves to the error state: outstanding work requests complete
	// with StatusFlushErr.
	ToError() error
	// PostRecv adds receive work requests. On an error the requests before
	// the one that failed were posted; n tells how many.
	PostRecv(wr ...RecvWR) (n int, err error)
	// PostSend adds send work requests, likewise. wr is not retained.
	PostSend(wr ...SendWR) (n int, err error)
}

// SGE is a piece of local memory: Len bytes at offset Off of MR.
type SGE struct {
	MR  MR
	Off int
	Len int
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID uint64
	SG SGE // where an incoming SEND goes; zero for none
	// More is where a SEND that is longer than SG goes on; zero for none.
	// Where long messages are rare it may be memory that is never touched.
	More SGE
}

// Opcode is the operation of a send work request.
type Opcode uint8

// Send operations.
const (
	OpSend Opcode = iota + 1
	OpSendImm
	OpWrite
	OpWriteImm
	OpRead
)

// SendFlags modify a send work request.
type SendFlags uint8

// Send flags. A request without Signaled completes silently unless it fails.
const (
	Signaled  SendFlags = 1 << 0
	Solicited SendFlags = 1 << 1
	Inline    SendFlags = 1 << 2 // copy InlineData at post; SG is not used
)

// SendWR is a send work request.
type SendWR struct {
	ID         uint64
	Op         Opcode
	Flags      SendFlags
	SG         [2]SGE // up to two pieces, used in order; unused ones zero
	InlineData []byte // with Inline: at most 256 bytes
	Imm        uint32 // with OpSendImm and OpWriteImm
	RemoteAddr uint64 // with OpWrite, OpWriteImm and OpRead
	RKey       uint32 // likewise
}

// WCStatus is the outcome of a work request.
type WCStatus uint8

// Completion statuses, with libibverbs' meanings.
const (
	StatusSuccess WCStatus = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocProtErr
	StatusFlushErr
	StatusBadRespErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusFatalErr
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

// String names s, or prints its number if it is unknown.
func (s WCStatus) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Err returns nil for success, else a *CompletionError.
func (s WCStatus) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return &CompletionError{Status: s}
}

// A CompletionError is a work request that did not succeed.
type CompletionError struct{ Status WCStatus }

func (e *CompletionError) Error() string { return "rdmaverbs: " + e.Status.String() }

// WCOp tells what completed.
type WCOp uint8

// Completed operations.
const (
	WCSend WCOp = iota + 1
	WCWrite
	WCRead
	WCRecv         // a SEND arrived
	WCRecvWriteImm // an RDMA WRITE with immediate arrived
)

// WC is a work completion. With a Status other than StatusSuccess only ID,
// Status and QPN are valid.
type WC struct {
	ID     uint64
	Status WCStatus
	Op     WCOp
	QPN    uint32
	Len    int    // bytes received
	Imm    uint32 // valid if HasImm
	HasImm bool
}

// A CQ is a completion queue.
//
// The notify function given at creation is called after completions were
// added to a queue that was empty, from whatever goroutine the provider adds
// them in, with none of the provider's locks held. It may call Poll and post
// work requests, but must not wait for other completions. Calls may be
// spurious and may be concurrent; a consumer that polls until Poll returns 0
// loses none.
type CQ interface {
	io.Closer
	// Poll takes up to len(wc) completions and returns how many.
	Poll(wc []WC) int
}
