// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"strconv"

	"smcr/smc"
	"smcr/userstack/conn"
)

// MsgLen is the size in bytes of each CDC message and of each LLC message of
// version 1 (RFC 7609, appendices A.3 and A.4), and the least of version 2.
const MsgLen = 44

// ActionKind is what an [Action] asks the driver to do.
type ActionKind uint8

// The kinds of actions.
const (
	// ActSend posts Msg as a SEND on Link. A Token that is not zero asks
	// for a signaled request and [Group.Sent] once it completed.
	ActSend ActionKind = iota + 1
	// ActWrite posts an RDMA WRITE of Chunk.Mem[Off:Off+Len] to
	// RemoteAddr under RKey on Link, unsignaled unless Token is not zero.
	// The bytes may be read until the next signaled request on Link
	// completes.
	ActWrite
	// ActWakeRead reports that Conn became readable: data, end of file, or an
	// error (see [Conn.ReadErr]).
	ActWakeRead
	// ActWakeWrite reports that Conn has room to send, or a write error (see
	// [Conn.WriteErr]).
	ActWakeWrite
	// ActConnReady reports that the peer knows Conn's RMB on every link, so
	// that the CLC handshake may go on. With Err, the handshake must not go on.
	ActConnReady
	// ActFirstLink ends the first contact: the link is confirmed and the
	// second one set up or given up. Err says why SMC-R must be declined.
	ActFirstLink
	// ActConnClosed reports that Conn reached the Closed state: the TCP
	// connection below may be closed. Err says how it ended, nil for an
	// orderly end. It comes exactly once for each attached connection.
	ActConnClosed
	// ActWakeUrgent reports that the peer has announced urgent data, or that urgent
	// data has arrived (see [Conn.Urgent]).
	ActWakeUrgent
	// ActGroupDead is the last action of a group: no link is left and all
	// its resources are released. Err is the reason.
	ActGroupDead
)

var actionNames = [...]string{
	ActSend: "send", ActWrite: "write", ActWakeRead: "wake-read", ActWakeWrite: "wake-write",
	ActConnReady: "conn-ready", ActFirstLink: "first-link", ActConnClosed: "conn-closed",
	ActWakeUrgent: "wake-urgent", ActGroupDead: "group-dead",
}

// String returns a short name for logs.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) && actionNames[k] != "" {
		return actionNames[k]
	}
	return "action(" + strconv.Itoa(int(k)) + ")"
}

// Action is one thing for the driver to do. Actions are carried out in the
// order of the queue; those of one link must reach its queue pair in it.
type Action struct {
	Kind ActionKind
	Link *Link
	Conn *Conn
	// Msg is the message of an [ActSend], unless Long is not nil.
	Msg [MsgLen]byte
	// Long is a message of version 2 that is longer than MsgLen, at most
	// wire.MaxLLCLenV2 bytes.
	Long []byte
	// Off and Len are the part of Chunk that an [ActWrite] takes, in bytes. If the Data of the
	// chunk is an [RMBPart], it is a part of a local RMB.
	Chunk    *conn.Chunk
	Off, Len int
	// RemoteAddr and RKey are its destination in the peer's RMB.
	RemoteAddr uint64
	RKey       smc.RKey
	// Token is to be handed to [Group.Sent]; zero means unsignaled.
	Token uint64
	Err   error
	// PeerFull reports, for an [ActSend], that data of Conn must wait until after this
	// message, because the peer's RMBE is full (RFC 7609, section 4.5.1).
	PeerFull bool

	plain bool // a CDC message that may come after writes of other messages
}

// RMBPart says where in an RMB of [Env.NewRMB] a chunk is.
type RMBPart struct {
	Handle any
	Off    int // bytes
}

// Message returns the message of an [ActSend].
func (a *Action) Message() []byte {
	if a.Long != nil {
		return a.Long
	}
	return a.Msg[:]
}

// actionQueue has the actions that the driver has not taken.
type actionQueue struct {
	list []Action
	cdcs []Action // used by take
}

func (q *actionQueue) add(a Action) { *q.next() = a }

func (q *actionQueue) next() *Action {
	if n := len(q.list); n < cap(q.list) {
		q.list = q.list[:n+1]
	} else {
		q.list = append(q.list, Action{})
	}
	return &q.list[len(q.list)-1]
}

// drop takes back what has not been posted on a link.
func (q *actionQueue) drop(l *Link) {
	kept := q.list[:0]
	for _, a := range q.list {
		if a.Link != l {
			kept = append(kept, a)
		}
	}
	clear(q.list[len(kept):])
	q.list = kept
}

// take is [Group.TakeActions].
func (q *actionQueue) take(buf []Action) []Action {
	buf = buf[:0]
	q.cdcs = q.cdcs[:0]
	for i := range q.list {
		switch a := &q.list[i]; {
		case a.plain:
			q.cdcs = append(q.cdcs, *a)
		case a.Kind == ActWrite || a.Kind == ActWakeRead || a.Kind == ActWakeWrite:
			buf = append(buf, *a)
		default: // the messages before it must be sent first
			buf = append(append(buf, q.cdcs...), *a)
			q.cdcs = q.cdcs[:0]
		}
	}
	buf = append(buf, q.cdcs...)
	clear(q.cdcs)
	clear(q.list)
	q.list = q.list[:0]
	return buf
}
