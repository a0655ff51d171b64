// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"context"
	"fmt"
	"syscall"

	"smcr/pnet"

	"github.com/mdlayher/netlink"
)

// Numbers of the generic netlink controller (linux/genetlink.h).
const (
	genlControl = 0x10 // message type and family ID

	ctrlGetFamily = 3
	ctrlNewFamily = 1

	ctrlAttrFamilyID   = 1
	ctrlAttrFamilyName = 2
	ctrlAttrVersion    = 3
	ctrlAttrHdrSize    = 4
	ctrlAttrMaxAttr    = 5
	ctrlAttrOps        = 6

	ctrlAttrOpID    = 1
	ctrlAttrOpFlags = 2
)

// Flags of a command (linux/genetlink.h).
const (
	opAdmin  = 0x1 // needs privilege
	opDo     = 0x2
	opDump   = 0x4
	opPolicy = 0x8 // attributes are checked
)

// The IDs of the families of this server. The numbers have no meaning.
const (
	familyID     = 0x23
	pnetFamilyID = 0x24
	ownFamilyID  = 0x25
)

type genlOp struct {
	cmd   uint8
	flags uint32
	do    func(*Server, context.Context, *request, *replies) error
}

type genlFamily struct {
	id      uint16
	name    string
	maxAttr uint32
	ops     []genlOp
}

// families returns the families of the server besides the controller. The order and the
// flags of the commands are those of the kernel.
func families() []genlFamily {
	const dump, do = opDump | opPolicy, opDo | opAdmin | opPolicy
	return []genlFamily{
		{familyID, FamilyName, 1, []genlOp{
			{cmdGetSysInfo, dump, (*Server).dumpSysInfo},
			{cmdGetLgrSMCR, dump, (*Server).dumpLinkGroups},
			{cmdGetLinkSMCR, dump, (*Server).dumpLinks},
			{cmdGetLgrSMCD, dump, (*Server).dumpLinkGroupsD},
			{cmdGetDevSMCD, dump, (*Server).dumpDevicesD},
			{cmdGetDevSMCR, dump, (*Server).dumpDevices},
			{cmdGetStats, dump, (*Server).dumpStats},
			{cmdGetFbackStats, dump, (*Server).dumpFallbacks},
			{cmdDumpUEID, dump, (*Server).dumpUEIDs},
			{cmdAddUEID, do, (*Server).doUEID},
			{cmdRemoveUEID, do, (*Server).doUEID},
			{cmdFlushUEID, do, (*Server).doFlushUEID},
			{cmdDumpSEID, dump, (*Server).dumpSEID},
			{cmdEnableSEID, do, (*Server).doSEID},
			{cmdDisableSEID, do, (*Server).doSEID},
			{cmdDumpHSLimitation, dump, (*Server).dumpHSLimitation},
			{cmdEnableHSLimitation, do, (*Server).doHSLimitation},
			{cmdDisableHSLimitation, do, (*Server).doHSLimitation},
		}},
		{pnetFamilyID, PNETFamilyName, 4, []genlOp{
			{cmdPNETGet, opDo | opDump | opPolicy, (*Server).getPNET},
			{cmdPNETAdd, do, (*Server).doPNET},
			{cmdPNETDel, do, (*Server).doPNET},
			{cmdPNETFlush, do, (*Server).doFlushPNET},
		}},
		{ownFamilyID, OwnFamilyName, attrOwnLearnt, []genlOp{
			{cmdOwnDeleteLink, do, (*Server).doDelete},
			{cmdOwnDeleteLinkGroup, do, (*Server).doDelete},
			{cmdOwnTrace, do | opDump, (*Server).dumpTrace},
			{cmdOwnGetAttached, dump, (*Server).dumpAttachments},
			{cmdOwnAttach, do, (*Server).doAttach},
			{cmdOwnDetach, do, (*Server).doAttach},
			{cmdOwnEnter, opDo | opDump | opPolicy, (*Server).dumpEnter},
			{cmdOwnListen, opDo | opDump | opPolicy, (*Server).dumpListen},
			{cmdOwnGetLearnt, dump, (*Server).dumpLearnt},
		}},
	}
}

// answerGenl answers a generic netlink request. It makes the checks of the kernel, in the
// same order.
func (s *Server) answerGenl(ctx context.Context, req *request, out *replies) error {
	if len(req.Data) < genlHeaderLen {
		return syscall.EINVAL
	}
	req.cmd, req.attrs = req.Data[0], req.Data[genlHeaderLen:]
	if req.Header.Type == genlControl {
		return s.answerControl(req, out)
	}
	for _, f := range families() {
		if f.id != uint16(req.Header.Type) {
			continue
		}
		for _, op := range f.ops {
			if op.cmd == req.cmd {
				return s.perform(ctx, op, req, out)
			}
		}
		return syscall.EOPNOTSUPP
	}
	return syscall.ENOENT
}

func (s *Server) perform(ctx context.Context, op genlOp, req *request, out *replies) error {
	if op.flags&opAdmin != 0 && !s.cfg.Authorize(req.peer) {
		return syscall.EPERM
	}
	if req.dump() {
		if op.flags&opDump == 0 {
			return syscall.EOPNOTSUPP
		}
		if op.flags&opDo == 0 && len(req.attrs) > 0 {
			return syscall.EINVAL
		}
		if err := op.do(s, ctx, req, out); err != nil {
			return err
		}
		out.done()
		return nil
	}
	if op.flags&opDo == 0 {
		return syscall.EOPNOTSUPP
	}
	if err := op.do(s, ctx, req, out); err != nil {
		return err
	}
	if op.flags&opDump == 0 {
		if req.peer.UID != 0 {
			s.cfg.Logger.Info("state changed", "uid", req.peer.UID, "pid", req.peer.PID, "command", op.cmd)
		}
		out.ack()
	}
	return nil
}

// answerControl answers requests to the controller, which returns the IDs of families.
func (s *Server) answerControl(req *request, out *replies) error {
	if req.cmd != ctrlGetFamily {
		return syscall.EOPNOTSUPP
	}
	if req.dump() {
		for _, f := range families() {
			attrs, err := marshalAttrs(&f)
			if err != nil {
				return err
			}
			out.message(genlControl, netlink.Multi, append([]byte{ctrlNewFamily, 2, 0, 0}, attrs...))
		}
		out.done()
		return nil
	}
	var want genlFamily
	if err := unmarshalAttrs(req.attrs, &want); err != nil || want.name == "" && want.id == 0 {
		return syscall.EINVAL
	}
	for _, f := range families() {
		if f.name == want.name || want.name == "" && f.id == want.id {
			attrs, err := marshalAttrs(&f)
			if err != nil {
				return err
			}
			out.message(genlControl, 0, append([]byte{ctrlNewFamily, 2, 0, 0}, attrs...))
			out.ack()
			return nil
		}
	}
	return syscall.ENOENT
}

func (f *genlFamily) encode(ae *attrEncoder) {
	ae.String(ctrlAttrFamilyName, f.name)
	ae.Uint16(ctrlAttrFamilyID, f.id)
	ae.Uint32(ctrlAttrVersion, familyVersion)
	ae.Uint32(ctrlAttrHdrSize, 0)
	ae.Uint32(ctrlAttrMaxAttr, f.maxAttr)
	// The nests of the controller do not have the flag NLA_F_NESTED.
	ops := ae.begin(ctrlAttrOps)
	for i, op := range f.ops {
		one := ae.begin(uint16(i + 1))
		ae.Uint32(ctrlAttrOpID, uint32(op.cmd))
		ae.Uint32(ctrlAttrOpFlags, op.flags)
		ae.end(one)
	}
	ae.end(ops)
}

// decode reads only the name and the ID, which requests have.
func (f *genlFamily) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case ctrlAttrFamilyName:
			f.name = rawText(ad)
		case ctrlAttrFamilyID:
			f.id = number16(ad)
		}
	}
	return ad.Err()
}

func (s *Server) dumpSysInfo(ctx context.Context, req *request, out *replies) error {
	x, err := s.ctl.SysInfo(ctx)
	if err != nil {
		return err
	}
	return out.row(req.cmd, attrSysInfo, &x)
}

func (s *Server) dumpLinkGroups(ctx context.Context, req *request, out *replies) error {
	groups, err := s.ctl.LinkGroups(ctx)
	for i := range groups {
		if err == nil {
			s.hideGroup(req.peer, &groups[i])
			err = out.row(req.cmd, attrLgrSMCR, &groups[i])
		}
	}
	return err
}

// dumpLinks sends each link group, as command GET_LGR, before its links.
func (s *Server) dumpLinks(ctx context.Context, req *request, out *replies) error {
	links, err := s.ctl.Links(ctx)
	if err != nil {
		return err
	}
	groups, err := s.ctl.LinkGroups(ctx)
	if err != nil {
		return err
	}
	byID := make(map[LinkGroupID]*LinkGroup, len(groups))
	for i := range groups {
		s.hideGroup(req.peer, &groups[i])
		byID[groups[i].ID] = &groups[i]
	}
	for i := range links {
		l := &links[i]
		s.hideLink(req.peer, l)
		if i == 0 || links[i-1].LinkGroup != l.LinkGroup {
			g := byID[l.LinkGroup]
			if g == nil || g.Role != l.Role || g.Type != l.Type {
				// The table has changed between the two calls.
				g = &LinkGroup{ID: l.LinkGroup, Role: l.Role, Type: l.Type}
			}
			if err := out.row(cmdGetLgrSMCR, attrLgrSMCR, g); err != nil {
				return err
			}
		}
		if err := out.row(req.cmd, attrLinkSMCR, l); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) dumpLinkGroupsD(ctx context.Context, req *request, out *replies) error {
	d, ok := s.ctl.(ControlSMCD)
	if !ok {
		return nil // an empty table
	}
	groups, err := d.LinkGroupsD(ctx)
	for i := range groups {
		if err == nil {
			err = out.row(req.cmd, attrLgrSMCD, &groups[i])
		}
	}
	return err
}

func (s *Server) dumpDevicesD(ctx context.Context, req *request, out *replies) error {
	d, ok := s.ctl.(ControlSMCD)
	if !ok {
		return nil // an empty table
	}
	devices, err := d.DevicesD(ctx)
	for i := range devices {
		if err == nil {
			err = out.row(req.cmd, attrDevSMCD, &devices[i])
		}
	}
	return err
}

func (s *Server) dumpDevices(ctx context.Context, req *request, out *replies) error {
	devices, err := s.ctl.Devices(ctx)
	for i := range devices {
		if err == nil {
			err = out.row(req.cmd, attrDevSMCR, &devices[i])
		}
	}
	return err
}

func (s *Server) dumpStats(ctx context.Context, req *request, out *replies) error {
	x, err := s.ctl.Stats(ctx)
	if err != nil {
		return err
	}
	return out.row(req.cmd, attrStats, (*statsAttrs)(&x))
}

func (s *Server) dumpFallbacks(ctx context.Context, req *request, out *replies) error {
	f, err := s.ctl.Fallbacks(ctx)
	if err != nil {
		return err
	}
	for _, a := range fallbackAnswers(f) {
		if err := out.row(req.cmd, attrFbackStats, &a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) dumpUEIDs(ctx context.Context, req *request, out *replies) error {
	eids, err := s.ctl.UEIDs(ctx)
	if err != nil {
		return err
	}
	for _, eid := range eids {
		u := ueid(eid)
		if err := out.row(req.cmd, 0, &u); err != nil {
			return err
		}
	}
	return nil
}

// doUEID adds or removes an enterprise ID. Like the kernel, it requires one that is
// padded to its full length and has a NUL at the end.
func (s *Server) doUEID(ctx context.Context, req *request, _ *replies) error {
	ad := &attrDecoder{b: req.attrs}
	var eid string
	found := false
	for ad.Next() {
		if ad.Type() == attrUEID {
			found = true
			if b := ad.Bytes(); len(b) != MaxEIDLen+1 || bytes.IndexByte(b, 0) != MaxEIDLen {
				return syscall.EINVAL
			}
			eid = text(ad)
		}
	}
	if ad.Err() != nil || !found {
		return syscall.EINVAL
	}
	if req.cmd == cmdRemoveUEID {
		return s.ctl.RemoveUEID(ctx, eid) // also ENOENT for a string that is no enterprise ID
	}
	if err := CheckEID(eid); err != nil {
		return err
	}
	return s.ctl.AddUEID(ctx, eid)
}

func (s *Server) doFlushUEID(ctx context.Context, _ *request, _ *replies) error {
	return s.ctl.FlushUEID(ctx)
}

func (s *Server) dumpSEID(ctx context.Context, req *request, out *replies) error {
	x, err := s.ctl.SEID(ctx)
	if err != nil {
		return err
	}
	return out.row(req.cmd, 0, &x)
}

func (s *Server) doSEID(ctx context.Context, req *request, _ *replies) error {
	return s.ctl.SetSEID(ctx, req.cmd == cmdEnableSEID)
}

func (s *Server) dumpHSLimitation(ctx context.Context, req *request, out *replies) error {
	on, err := s.ctl.HSLimitation(ctx)
	if err != nil {
		return err
	}
	h := hsLimitation(on)
	return out.row(req.cmd, 0, &h)
}

func (s *Server) doHSLimitation(ctx context.Context, req *request, _ *replies) error {
	return s.ctl.SetHSLimitation(ctx, req.cmd == cmdEnableHSLimitation)
}

// pnetParams parses the attributes of an SMC_PNETID request. It checks their lengths like
// the policy of the kernel.
func pnetParams(attrs []byte) (PNET, error) {
	var p pnetRequest
	if err := unmarshalAttrs(attrs, &p); err != nil {
		return PNET{}, syscall.EINVAL
	}
	if len(p.ID) > pnet.MaxIDLen || len(p.NetDev) > pnet.MaxNetDevLen || len(p.IBDev) > pnet.MaxIBDevLen {
		return PNET{}, syscall.ERANGE
	}
	return PNET(p), nil
}

// getPNET lists the whole table or the entries of one pnetid. A request for one pnetid
// need not ask for a dump, but the answer also ends with a DONE message.
func (s *Server) getPNET(ctx context.Context, req *request, out *replies) error {
	want, err := pnetParams(req.attrs)
	if err != nil {
		return err
	}
	if want.ID == "" && !req.dump() {
		return syscall.EINVAL
	}
	entries, err := s.ctl.PNETs(ctx)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if want.ID != "" && e.ID != want.ID {
			continue
		}
		if err := out.row(req.cmd, 0, (*pnetAnswer)(&e)); err != nil {
			return err
		}
	}
	if !req.dump() {
		out.message(netlink.Done, netlink.Multi, nil)
		out.ack()
	}
	return nil
}

// doPNET adds an entry, or removes the entries of a pnetid.
func (s *Server) doPNET(ctx context.Context, req *request, _ *replies) error {
	p, err := pnetParams(req.attrs)
	if err != nil {
		return err
	}
	if p.ID == "" {
		return fmt.Errorf("a pnetid is missing: %w", syscall.EINVAL)
	}
	if req.cmd == cmdPNETAdd {
		if p.IBPort > pnet.MaxIBPort {
			return syscall.EINVAL
		}
		return s.ctl.AddPNET(ctx, p)
	}
	return s.ctl.RemovePNET(ctx, p.ID)
}

func (s *Server) doFlushPNET(ctx context.Context, _ *request, _ *replies) error {
	return s.ctl.FlushPNET(ctx)
}
