// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/hex"
	"fmt"

	"smcr/smc"
	"smcr/userstack/wire"
)

// llc decodes an LLC message into ev.
func (d *Decoder) llc(ev *Event, b []byte) {
	ev.Type = LLC
	h, herr := wire.ParseLLCHeader(b)
	ev.Message, ev.Reply = h.Type.String(), h.Reply
	m, err := wire.ParseLLC(b)
	var f fields
	if err != nil {
		ev.Fault = faultOf(err)
		if herr != nil {
			ev.Message = "LLC"
		}
		return
	}
	switch m := m.(type) {
	case wire.ConfirmLink:
		f.brief("link", m.LinkNum)
		f.brief("qpn", m.QPN.String())
		f.brief("gid", m.GID.String())
		f.more("mac", m.MAC.String())
		f.more("link_user_id", token(m.LinkUserID))
		f.brief("max_links", m.MaxLinks)
		f.more("max_conns", m.MaxConns)
		f.more("no_eyecatcher", m.NoEyecatcher)
		ev.SrcQPN = m.QPN
		d.LearnPair(QP{ev.Src.Addr(), m.QPN}, QP{ev.Dst.Addr(), ev.DstQPN})
	case wire.AddLink:
		addLink(&f, &m)
	case wire.AddLinkCont:
		f.brief("link", m.LinkNum)
		f.brief("left", m.Left)
		f.more("rkeys", pairs(m.Pairs[:min(int(m.Left), len(m.Pairs))]))
	case wire.ReqAddLink:
		f.brief("gids", gids(m.GIDs))
	case wire.DeleteLink:
		f.flag("all", m.All)
		if !m.All {
			f.brief("link", m.LinkNum)
		}
		f.brief("orderly", m.Orderly)
		f.brief("reason", m.Reason.String())
	case wire.ConfirmRKey:
		f.flag("negative", m.Negative)
		f.flag("retry", m.Retry)
		f.brief("rkey", m.This.RKey.String())
		f.brief("others", m.Others)
		f.more("address", hex64(m.This.Addr))
		f.more("other_links", others(m.Other[:m.Count()]))
	case wire.ConfirmRKeyCont:
		f.flag("negative", m.Negative)
		f.brief("left", m.Left)
		f.more("other_links", others(m.Other[:min(int(m.Left), len(m.Other))]))
	case wire.DeleteRKey:
		f.flag("negative", m.Negative)
		f.brief("count", m.Count)
		f.brief("rkeys", rkeys(m.RKeys[:min(int(m.Count), len(m.RKeys))]))
		f.more("error_mask", m.ErrorMask)
	case wire.DeleteRKeyV2:
		f.flag("negative", m.Negative)
		f.brief("count", m.Count)
		if !m.Reply {
			f.brief("rkeys", rkeys(m.RKeys))
		}
		f.more("invalid", m.Invalid)
	case wire.TestLink:
		f.more("user_data", hex.EncodeToString(m.UserData[:]))
	}
	f.more("layout", h.Layout.String())
	f.more("length", len(b))
	ev.Fields = f
}

func addLink(f *fields, m *wire.AddLink) {
	f.flag("rejected", m.Rejected)
	if m.Rejected && !m.Layout.V2() { // version 2 has no reason
		f.brief("reason", m.Reason.String())
	}
	f.brief("link", m.LinkNum)
	f.brief("qpn", m.QPN.String())
	f.brief("gid", m.GID.String())
	f.more("mac", m.MAC.String())
	f.more("mtu", m.MTU.Bytes())
	f.more("psn", m.PSN.String())
	if x := m.Ext; x != nil {
		f.more("direct", x.Direct)
		f.more("target_gid", x.TargetGID.String())
		f.more("rkeys", pairs(x.Pairs))
	}
}

func pairs(list []wire.RKeyPair) (out []string) {
	for _, p := range list {
		out = append(out, fmt.Sprintf("%s=%s@%s", p.RefRKey, p.New.RKey, hex64(p.New.Addr)))
	}
	return out
}

func others(list []wire.LinkRToken) (out []string) {
	for _, t := range list {
		out = append(out, fmt.Sprintf("%d:%s@%s", t.LinkNum, t.RKey, hex64(t.Addr)))
	}
	return out
}

func rkeys(list []smc.RKey) (out []string) {
	for _, k := range list {
		out = append(out, k.String())
	}
	return out
}
