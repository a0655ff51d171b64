// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"syscall"

	"github.com/mdlayher/netlink"
)

// An Attacher is a [Control] of a stack that takes the connections of programs which keep their sockets: the
// programs of attached cgroups. The errors match ErrNotSupported if the stack is another one.
type Attacher interface {
	// Attachments returns the attached cgroups.
	Attachments(ctx context.Context) ([]Attachment, error)

	// Attach attaches the cgroup a.Path, whether it is there or will be. It changes one that is attached. Of
	// a, only Path, Connect and Accept count, and UID unless this is a Client. The error matches os.ErrInvalid if the path is none.
	Attach(ctx context.Context, a Attachment) error

	// Detach is the inverse of Attach. The error matches os.ErrNotExist if the cgroup is not attached.
	Detach(ctx context.Context, path string) error

	// Enter has a process be in an attached cgroup of its own, with what it starts from then on. Where the stack may make none, but
	// the process is in an attached one already, the result is that one, without Run. A
	// [Client] asks for its own process, whatever who says. always is that of the Attachment. The error
	// matches os.ErrPermission if the user may not use the stack, and syscall.EUSERS if it has too many.
	Enter(ctx context.Context, who Peer, always bool) (Attachment, error)

	// Listen has the connections of listening TCP sockets that a process was started with count to the cgroup of its
	// Enter, although another one has made them: they use SMC as those of its own sockets do. fds are descriptors of them. If one
	// of them cannot be, the others can; the error matches os.ErrInvalid for what is no listening TCP socket. For who, see Enter.
	Listen(ctx context.Context, who Peer, fds []int) error
}

var _ Attacher = (*Client)(nil)

// AttacherOf returns a Control as an [Attacher]. The error matches ErrNotSupported if it is none.
func AttacherOf(c Control) (Attacher, error) {
	if b, ok := c.(Backend); ok {
		c = b.Control
	}
	if a, ok := c.(Attacher); ok {
		return a, nil
	}
	return nil, ErrNotSupported
}

// An Attachment is a cgroup whose programs use SMC, and what became of their connections.
type Attachment struct {
	// Path is that of the cgroup, from the top of the tree of version 2 on; it begins with "/".
	Path string
	// Cgroup is the number of the cgroup, or 0 if there is none with this path now.
	Cgroup uint64
	// UID is the user that has asked for it.
	UID uint32
	// Run means that the cgroup is of a program of Enter, and ends with that.
	Run bool
	// Connect and Accept say whose connections use SMC: of sockets that connect, and that accept.
	Connect, Accept bool
	// Always has each connection try SMC, also if it was of no use for many short ones.
	Always bool
	Outcomes
}

// Outcomes says what became of connections. A [Server] does not show it to other users.
type Outcomes struct {
	// SMCR is how many use SMC-R.
	SMCR uint64
	// TCP is how many became TCP, by side and reason. Of connections that this host accepts, only those count whose
	// peer announces SMC.
	TCP []Fallback
	// Resets is how many of SMCR the stack has reset by itself, by reason.
	Resets []Reset
}

// A Reset says how many connections a stack has reset for one reason.
type Reset struct {
	Why   string
	Count uint64
}

func (r *Reset) encode(ae *attrEncoder) {
	ae.String(attrResetWhy, r.Why)
	ae.Uint64(attrResetCount, r.Count)
}

func (r *Reset) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrResetWhy:
			r.Why = rawText(ad)
		case attrResetCount:
			r.Count = number(ad)
		}
	}
	return ad.Err()
}

func (a *Attachment) encode(ae *attrEncoder) {
	ae.String(attrAttachPath, a.Path)
	ae.Uint64(attrAttachCgroup, a.Cgroup)
	ae.Uint32(attrAttachUID, a.UID)
	boolAttr(ae, attrAttachRun, a.Run)
	boolAttr(ae, attrAttachConnect, a.Connect)
	boolAttr(ae, attrAttachAccept, a.Accept)
	boolAttr(ae, attrAttachAlways, a.Always)
	uintAttr(ae, attrAttachSMCR, a.SMCR)
	for i := range a.TCP {
		ae.Nested(attrAttachTCP, (*reasonAttrs)(&a.TCP[i]))
	}
	for i := range a.Resets {
		ae.Nested(attrAttachReset, &a.Resets[i])
	}
}

func (a *Attachment) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrAttachPath:
			a.Path = rawText(ad)
		case attrAttachCgroup:
			a.Cgroup = number(ad)
		case attrAttachUID:
			a.UID = number32(ad)
		case attrAttachRun:
			a.Run = number8(ad) != 0
		case attrAttachConnect:
			a.Connect = number8(ad) != 0
		case attrAttachAccept:
			a.Accept = number8(ad) != 0
		case attrAttachAlways:
			a.Always = number8(ad) != 0
		case attrAttachSMCR:
			a.SMCR = number(ad)
		case attrAttachTCP:
			var r reasonAttrs
			ad.Nested(&r)
			a.TCP = append(a.TCP, Fallback(r))
		case attrAttachReset:
			var r Reset
			ad.Nested(&r)
			a.Resets = append(a.Resets, r)
		}
	}
	return ad.Err()
}

func (s *Server) dumpAttachments(ctx context.Context, req *request, out *replies) error {
	ctl, err := AttacherOf(s.ctl)
	if err != nil {
		return err
	}
	all, err := ctl.Attachments(ctx)
	for i := range all {
		if err == nil {
			s.hideAttachment(req.peer, &all[i])
			err = out.row(req.cmd, attrOwnAttach, &all[i])
		}
	}
	return err
}

// doAttach attaches or detaches a cgroup.
func (s *Server) doAttach(ctx context.Context, req *request, _ *replies) error {
	ctl, err := AttacherOf(s.ctl)
	if err != nil {
		return err
	}
	var a Attachment
	if found, err := unnestAttr(req.attrs, attrOwnAttach, &a); err != nil || !found || a.Path == "" {
		return syscall.EINVAL
	}
	if req.cmd == cmdOwnDetach {
		return ctl.Detach(ctx, a.Path)
	}
	return ctl.Attach(ctx, Attachment{Path: a.Path, UID: req.peer.UID, Connect: a.Connect, Accept: a.Accept, Always: a.Always})
}

// dumpEnter answers the request of a process for a cgroup of its own. It is a dump, so that there is an answer.
func (s *Server) dumpEnter(ctx context.Context, req *request, out *replies) error {
	if !req.dump() {
		return syscall.EOPNOTSUPP
	}
	ctl, err := AttacherOf(s.ctl)
	if err != nil {
		return err
	}
	var r attachRequest
	if err := unmarshalAttrs(req.attrs, &r); err != nil {
		return syscall.EINVAL
	}
	a, err := ctl.Enter(ctx, req.peer, r.a.Always)
	if err != nil {
		return err
	}
	s.cfg.Logger.Debug("a program begins", "uid", req.peer.UID, "pid", req.peer.PID, "cgroup", a.Path)
	return out.row(req.cmd, attrOwnAttach, &a)
}

// Attachments implements [Attacher].
func (c *Client) Attachments(ctx context.Context) ([]Attachment, error) {
	return c.attached(ctx, "list attached cgroups", cmdOwnGetAttached, nil)
}

// Attach implements [Attacher].
func (c *Client) Attach(ctx context.Context, a Attachment) error {
	return c.attach(ctx, "attach", cmdOwnAttach, a)
}

// Detach implements [Attacher].
func (c *Client) Detach(ctx context.Context, path string) error {
	return c.attach(ctx, "detach", cmdOwnDetach, Attachment{Path: path})
}

// Enter implements [Attacher].
func (c *Client) Enter(ctx context.Context, _ Peer, always bool) (Attachment, error) {
	const op = "enter a cgroup"
	attrs, err := marshalAttrs(&attachRequest{Attachment{Always: always}})
	if err != nil {
		return Attachment{}, &OpError{Op: op, Backend: c.backend, Err: err}
	}
	all, err := c.attached(ctx, op, cmdOwnEnter, attrs)
	if err != nil || len(all) == 0 {
		return Attachment{}, err
	}
	return all[0], nil
}

// attached performs a command whose answer is attachments.
func (c *Client) attached(ctx context.Context, op string, cmd uint8, attrs []byte) ([]Attachment, error) {
	var s []Attachment
	err := c.genl(ctx, op, OwnFamilyName, cmd, netlink.Dump, attrs, answer{
		begin: func() { s = nil },
		parse: func(_ uint8, attrs []byte) error {
			var a Attachment
			ok, err := unnestAttr(attrs, attrOwnAttach, &a)
			if ok && err == nil {
				s = append(s, a)
			}
			return err
		},
	})
	return s, ownFamily(ctx, c, op, err)
}

// attach performs a command that changes an attachment.
func (c *Client) attach(ctx context.Context, op string, cmd uint8, a Attachment) error {
	attrs, err := marshalAttrs(&attachRequest{a})
	if err != nil {
		return &OpError{Op: op, Backend: c.backend, Object: a.Path, Err: err}
	}
	err = c.genl(ctx, op, OwnFamilyName, cmd, netlink.Acknowledge, attrs, answer{})
	return withObject(ownFamily(ctx, c, op, err), a.Path)
}

// attachRequest is an attachment as a nest.
type attachRequest struct{ a Attachment }

func (r *attachRequest) encode(ae *attrEncoder) { nest(ae, attrOwnAttach, &r.a) }

func (r *attachRequest) decode(ad *attrDecoder) error {
	for ad.Next() {
		if ad.Type() == attrOwnAttach {
			denest(ad, &r.a)
		}
	}
	return ad.Err()
}
