// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"syscall"
)

// deleteRequest names a link group, or one of its links, in a request of SMCR_STACK. The
// kernel has no such command.
type deleteRequest struct {
	Group LinkGroupID
	Link  uint8 // number of the link in the group; 0: the group
}

func (r *deleteRequest) encode(ae *attrEncoder) {
	ae.Uint32(attrOwnLinkGroup, uint32(r.Group))
	if r.Link != 0 {
		ae.Uint8(attrOwnLink, r.Link)
	}
}

func (r *deleteRequest) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrOwnLinkGroup:
			r.Group = LinkGroupID(number32(ad))
		case attrOwnLink:
			r.Link = number8(ad)
		}
	}
	return ad.Err()
}

// doDelete deletes a link or ends a link group.
func (s *Server) doDelete(ctx context.Context, req *request, _ *replies) error {
	var r deleteRequest
	if err := unmarshalAttrs(req.attrs, &r); err != nil || r.Group == 0 || (r.Link != 0) != (req.cmd == cmdOwnDeleteLink) {
		return syscall.EINVAL
	}
	if req.cmd == cmdOwnDeleteLink {
		return s.ctl.DeleteLink(ctx, r.Group, r.Link)
	}
	return s.ctl.DeleteLinkGroup(ctx, r.Group)
}
