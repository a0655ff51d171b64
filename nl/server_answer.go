// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
)

const (
	nlmsgMinType = 0x10 // types below are reserved for control messages
	nlmsgErrMsg  = 1    // NLMSGERR_ATTR_MSG
)

// A request is one netlink message to a server.
type request struct {
	peer Peer
	netlink.Message
	sockets received // what has come with its datagram

	// The fields below are of generic netlink.
	cmd   uint8
	attrs []byte
}

// dump reports whether the request asks for a whole table.
func (r *request) dump() bool { return r.Header.Flags&netlink.Dump == netlink.Dump }

// replies collects the answer to one request and sends it in datagrams of at most
// maxAnswer bytes; only a single message may be larger. Messages are written to the
// buffer that is sent, so the rows of a table need no memory of their own.
type replies struct {
	req  *request
	send func([]byte) error
	buf  []byte
	err  error // the error of send

	attrs attrEncoder
}

// begin starts a message and returns its position for end. The payload must be appended
// to buf before end is called.
func (r *replies) begin(typ netlink.HeaderType, flags netlink.HeaderFlags) int {
	at := len(r.buf)
	r.buf = appendHeader(r.buf, netlink.Header{Type: typ, Flags: flags, Sequence: r.req.Header.Sequence, PID: r.req.Header.PID})
	return at
}

func (r *replies) end(at int) {
	r.buf = endMessage(r.buf, at)
	if at > 0 && len(r.buf) > maxAnswer {
		if r.err == nil {
			r.err = r.send(r.buf[:at])
		}
		r.buf = r.buf[:copy(r.buf, r.buf[at:])]
	}
}

// message adds one message to the answer.
func (r *replies) message(typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte) {
	at := r.begin(typ, flags)
	r.buf = append(r.buf, data...)
	r.end(at)
}

func (r *replies) flush() {
	if len(r.buf) > 0 && r.err == nil {
		r.err = r.send(r.buf)
	}
	r.buf = r.buf[:0]
}

// row adds one row of a dump: x as a nest of type typ, or without a nest if typ is zero.
func (r *replies) row(cmd uint8, typ uint16, x attrCodec) error {
	at := r.begin(r.req.Header.Type, netlink.Multi)
	r.attrs = attrEncoder{b: appendGenl(r.buf, cmd)}
	if typ == 0 {
		x.encode(&r.attrs)
	} else {
		r.attrs.Nested(typ, x)
	}
	r.buf = r.attrs.b
	if err := r.attrs.err; err != nil {
		r.buf = r.buf[:at]
		return err
	}
	r.end(at)
	return nil
}

// done ends a dump.
func (r *replies) done() { r.message(netlink.Done, netlink.Multi, make([]byte, 4)) }

// fail answers the request with an error. The text of the error is sent as extended
// acknowledgement.
func (r *replies) fail(err error) {
	r.buf = r.buf[:0] // without the rows of a dump that failed
	errno, text := errnoOf(err)
	h := r.req.Header
	data := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	data = appendMessage(data, h, r.req.Data)
	// The extended acknowledgement begins after the message that is quoted, so the length
	// of that message must include its padding.
	binary.NativeEndian.PutUint32(data[4:], uint32(len(data)-4))
	var flags netlink.HeaderFlags
	if text != "" {
		ae := &attrEncoder{b: data}
		limited(ae, nlmsgErrMsg, text, 512)
		flags, data = netlink.AcknowledgeTLVs, ae.b
	}
	r.message(netlink.Error, flags, data)
}

// ack confirms the request if it asked for that. Like the kernel, it sends a separate
// datagram: libnl ignores messages that follow an answer.
func (r *replies) ack() {
	if r.req.Header.Flags&netlink.Acknowledge == 0 {
		return
	}
	r.flush()
	data := make([]byte, 4)
	data = appendMessage(data, r.req.Header, nil)
	binary.NativeEndian.PutUint32(data[4:], r.req.Header.Length)
	r.message(netlink.Error, netlink.Capped, data)
}

// answer answers one request. It returns the error of send.
func (s *Server) answer(ctx context.Context, peer Peer, m netlink.Message, with received, send func([]byte) error) error {
	req := &request{peer: peer, Message: m, sockets: with}
	out := &replies{req: req, send: send}
	if m.Header.Flags&netlink.Request == 0 {
		return nil // the kernel does the same
	}
	var err error
	switch {
	case m.Header.Type < nlmsgMinType:
		out.ack()
	case m.Header.Type == sockDiagByFamily:
		err = s.answerDiag(ctx, req, out)
	default:
		err = s.answerGenl(ctx, req, out)
	}
	if err != nil {
		s.cfg.Logger.Debug("control request refused", "uid", peer.UID, "pid", peer.PID,
			"type", uint16(m.Header.Type), "command", req.cmd, "err", err)
		out.fail(err)
	}
	out.flush()
	return out.err
}

// answerDiag answers a sock_diag request.
func (s *Server) answerDiag(ctx context.Context, req *request, out *replies) error {
	if len(req.Data) < diagRequestLen {
		return syscall.EINVAL
	}
	ext, err := parseDiagRequest(req.Data)
	if err != nil {
		return syscall.ENOENT // there is no handler for this address family
	}
	if req.Header.Flags&netlink.Dump == 0 {
		out.ack()
		return nil
	}
	conns, err := s.ctl.Connections(ctx)
	if err != nil {
		return err
	}
	for i := range conns {
		s.hideConn(req.peer, &conns[i])
		at := out.begin(sockDiagByFamily, netlink.Multi)
		if out.buf, err = conns[i].appendDiag(out.buf, ext); err != nil {
			return err
		}
		out.end(at)
	}
	out.done()
	return nil
}

// errnoOf returns the error number for err in a message, and the rest of the text of err.
func errnoOf(err error) (syscall.Errno, string) {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno, without(err, errno)
	}
	for _, m := range []struct {
		target error
		errno  syscall.Errno
	}{
		{os.ErrNotExist, syscall.ENOENT},
		{os.ErrExist, syscall.EEXIST},
		{os.ErrPermission, syscall.EPERM},
		{os.ErrInvalid, syscall.EINVAL},
		{ErrNotSupported, syscall.EOPNOTSUPP},
		{context.DeadlineExceeded, syscall.ETIMEDOUT},
		{context.Canceled, syscall.ESHUTDOWN},
		{os.ErrClosed, syscall.ESHUTDOWN},
	} {
		if errors.Is(err, m.target) {
			return m.errno, without(err, m.target)
		}
	}
	return syscall.EIO, err.Error()
}

// without returns the text of err without the text of its cause at the end: the other
// side knows the cause from the error number.
func without(err, cause error) string {
	text := err.Error()
	if text == cause.Error() {
		return ""
	}
	return strings.TrimSuffix(text, ": "+cause.Error())
}
