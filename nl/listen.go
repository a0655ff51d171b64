// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
)

// maxSockets is how many descriptors of sockets come with one datagram.
const maxSockets = 16

// dumpListen answers the request of a process that hands listening sockets over. It is a dump without rows: like that of dumpEnter,
// it is no change of the state.
func (s *Server) dumpListen(ctx context.Context, req *request, _ *replies) error {
	if !req.dump() {
		return syscall.EOPNOTSUPP
	}
	ctl, err := AttacherOf(s.ctl)
	switch {
	case err != nil:
		return err
	case req.sockets.err != nil:
		return req.sockets.err
	case len(req.sockets.fds) == 0:
		return syscall.EINVAL
	}
	if err := ctl.Listen(ctx, req.peer, req.sockets.fds); err != nil {
		return err
	}
	s.cfg.Logger.Debug("a program has listening sockets of others", "uid", req.peer.UID, "pid", req.peer.PID, "sockets", len(req.sockets.fds))
	return nil
}

// Listen implements [Attacher].
func (c *Client) Listen(ctx context.Context, _ Peer, fds []int) error {
	const op = "hand listening sockets over"
	for some := range slices.Chunk(fds, maxSockets) {
		err := c.genl(ctx, op, OwnFamilyName, cmdOwnListen, netlink.Dump, nil, answer{sockets: some})
		if err := ownFamily(ctx, c, op, err); err != nil {
			return err
		}
	}
	return nil
}

// controlSize is the space for control messages that a server has: for one descriptor more than a client may send, so that there are too
// many whether or not the kernel says that it has left some out.
var controlSize = syscall.CmsgSpace(4 * (maxSockets + 1))

// received are the descriptors that have come with a datagram, or err if they are not to be used.
type received struct {
	fds []int
	err error
}

// descriptor is an open file as an io.Closer.
type descriptor int

// Close implements io.Closer.
func (d descriptor) Close() error { return syscall.Close(int(d)) }

// takeSockets returns the descriptors of control messages, which count to a user until dropSockets is called.
func (s *Server) takeSockets(uid uint32, control []byte) (r received) {
	msgs, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return received{err: err}
	}
	for i := range msgs {
		if fds, err := syscall.ParseUnixRights(&msgs[i]); err == nil {
			r.fds = append(r.fds, fds...)
		}
	}
	switch {
	case len(r.fds) > maxSockets:
		r.err = errDescriptors
	case len(r.fds) > 0:
		r.err = s.cfg.Quota.Take(uid, len(r.fds))
	}
	return r
}

// dropSockets closes descriptors. That may take as long as their user likes, who may have sent a file of a file system of his own:
// until then, his connection has its place, but a server that is closed does not wait.
func (s *Server) dropSockets(uid uint32, r received) {
	if len(r.fds) == 0 {
		return
	}
	closed := make(chan struct{})
	go s.cfg.Guard.Func("the descriptors of a client", func() {
		defer close(closed)
		for _, fd := range r.fds {
			_ = s.cfg.Close(descriptor(fd))
		}
		if r.err == nil {
			s.cfg.Quota.Give(uid, len(r.fds))
		}
	})()
	select {
	case <-closed:
	case <-s.ctx.Done():
	}
}

// writeWith is writeDatagram with descriptors.
func writeWith(conn *net.UnixConn, b []byte, fds []int) error {
	if len(fds) == 0 {
		return writeDatagram(conn, b)
	}
	if _, _, err := conn.WriteMsgUnix(b, syscall.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("nl: send descriptors: %w", err)
	}
	return nil
}
