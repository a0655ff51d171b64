// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"smcr/stats"

	"github.com/mdlayher/netlink"
)

// dump performs a dump of SMC_GEN_NETLINK. Dumps take no attributes.
func (c *Client) dump(ctx context.Context, op string, cmd uint8, parse func(cmd uint8, attrs []byte) error) error {
	return c.genl(ctx, op, FamilyName, cmd, netlink.Dump, nil, parse)
}

// do performs a change of SMC_GEN_NETLINK.
func (c *Client) do(ctx context.Context, op string, cmd uint8, attrs []byte) error {
	return c.genl(ctx, op, FamilyName, cmd, netlink.Acknowledge, attrs, nil)
}

// SysInfo implements [Control].
func (c *Client) SysInfo(ctx context.Context) (SysInfo, error) {
	var s SysInfo
	err := c.dump(ctx, "get system information", cmdGetSysInfo, func(_ uint8, attrs []byte) error {
		_, err := unnestAttr(attrs, attrSysInfo, &s)
		return err
	})
	return s, err
}

// LinkGroups implements [Control].
func (c *Client) LinkGroups(ctx context.Context) ([]LinkGroup, error) {
	var s []LinkGroup
	err := c.dump(ctx, "list link groups", cmdGetLgrSMCR, func(_ uint8, attrs []byte) error {
		var g LinkGroup
		ok, err := unnestAttr(attrs, attrLgrSMCR, &g)
		if ok && err == nil {
			s = append(s, g)
		}
		return err
	})
	return s, err
}

// Links implements [Control].
func (c *Client) Links(ctx context.Context) ([]Link, error) {
	var s []Link
	var g LinkGroup // the one whose links follow
	err := c.dump(ctx, "list links", cmdGetLinkSMCR, func(_ uint8, attrs []byte) error {
		var next LinkGroup
		ok, err := unnestAttr(attrs, attrLgrSMCR, &next)
		if err != nil {
			return err
		}
		if ok {
			g = next
		}
		l := Link{LinkGroup: g.ID, Role: g.Role, Type: g.Type}
		ok, err = unnestAttr(attrs, attrLinkSMCR, &l)
		if ok && err == nil {
			s = append(s, l)
		}
		return err
	})
	return s, err
}

// Devices implements [Control].
func (c *Client) Devices(ctx context.Context) ([]Device, error) {
	return c.devices(ctx, "list RoCE devices", cmdGetDevSMCR, attrDevSMCR)
}

// DevicesD implements [ControlSMCD].
func (c *Client) DevicesD(ctx context.Context) ([]Device, error) {
	return c.devices(ctx, "list ISM devices", cmdGetDevSMCD, attrDevSMCD)
}

func (c *Client) devices(ctx context.Context, op string, cmd uint8, typ uint16) ([]Device, error) {
	var s []Device
	err := c.dump(ctx, op, cmd, func(_ uint8, attrs []byte) error {
		var d Device
		ok, err := unnestAttr(attrs, typ, &d)
		if ok && err == nil {
			s = append(s, d)
		}
		return err
	})
	return s, err
}

// LinkGroupsD implements [ControlSMCD].
func (c *Client) LinkGroupsD(ctx context.Context) ([]LinkGroupD, error) {
	var s []LinkGroupD
	err := c.dump(ctx, "list SMC-D link groups", cmdGetLgrSMCD, func(_ uint8, attrs []byte) error {
		var g LinkGroupD
		ok, err := unnestAttr(attrs, attrLgrSMCD, &g)
		if ok && err == nil {
			s = append(s, g)
		}
		return err
	})
	return s, err
}

// Stats implements [Control].
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var s stats.Stats
	err := c.dump(ctx, "get statistics", cmdGetStats, func(_ uint8, attrs []byte) error {
		_, err := unnestAttr(attrs, attrStats, (*statsAttrs)(&s))
		return err
	})
	return s, err
}

// Fallbacks implements [Control].
func (c *Client) Fallbacks(ctx context.Context) (Fallbacks, error) {
	var f Fallbacks
	err := c.dump(ctx, "get fallback statistics", cmdGetFbackStats, func(_ uint8, attrs []byte) error {
		var a fallbackAttrs
		ok, err := unnestAttr(attrs, attrFbackStats, &a)
		if ok && err == nil {
			addAnswer(&f, a)
		}
		return err
	})
	return f, err
}

// UEIDs implements [Control].
func (c *Client) UEIDs(ctx context.Context) ([]string, error) {
	var s []string
	err := c.dump(ctx, "list user enterprise IDs", cmdDumpUEID, func(_ uint8, attrs []byte) error {
		var u ueid
		err := unmarshalAttrs(attrs, &u)
		if u != "" && err == nil {
			s = append(s, string(u))
		}
		return err
	})
	return s, err
}

// AddUEID implements [Control].
func (c *Client) AddUEID(ctx context.Context, eid string) error {
	return c.changeUEID(ctx, "add user enterprise ID", cmdAddUEID, eid)
}

// RemoveUEID implements [Control].
func (c *Client) RemoveUEID(ctx context.Context, eid string) error {
	return c.changeUEID(ctx, "remove user enterprise ID", cmdRemoveUEID, eid)
}

func (c *Client) changeUEID(ctx context.Context, op string, cmd uint8, eid string) error {
	if err := CheckEID(eid); err != nil {
		return &OpError{Op: op, Backend: c.backend, Object: eid, Err: err}
	}
	u := ueid(eid)
	attrs, err := marshalAttrs(&u)
	if err != nil {
		return &OpError{Op: op, Backend: c.backend, Object: eid, Err: err}
	}
	return withObject(c.do(ctx, op, cmd, attrs), eid)
}

// FlushUEID implements [Control].
func (c *Client) FlushUEID(ctx context.Context) error {
	return c.do(ctx, "flush user enterprise IDs", cmdFlushUEID, nil)
}

// SEID implements [Control].
func (c *Client) SEID(ctx context.Context) (SEID, error) {
	var s SEID
	err := c.dump(ctx, "get system enterprise ID", cmdDumpSEID, func(_ uint8, attrs []byte) error {
		return unmarshalAttrs(attrs, &s)
	})
	return s, err
}

// SetSEID implements [Control].
func (c *Client) SetSEID(ctx context.Context, enabled bool) error {
	if enabled {
		return c.do(ctx, "enable system enterprise ID", cmdEnableSEID, nil)
	}
	return c.do(ctx, "disable system enterprise ID", cmdDisableSEID, nil)
}

// HSLimitation implements [Control].
func (c *Client) HSLimitation(ctx context.Context) (bool, error) {
	var h hsLimitation
	err := c.dump(ctx, "get handshake limitation", cmdDumpHSLimitation, func(_ uint8, attrs []byte) error {
		return unmarshalAttrs(attrs, &h)
	})
	return bool(h), err
}

// SetHSLimitation implements [Control].
func (c *Client) SetHSLimitation(ctx context.Context, enabled bool) error {
	if enabled {
		return c.do(ctx, "enable handshake limitation", cmdEnableHSLimitation, nil)
	}
	return c.do(ctx, "disable handshake limitation", cmdDisableHSLimitation, nil)
}

// PNETs implements [Control].
func (c *Client) PNETs(ctx context.Context) ([]PNET, error) {
	var s []PNET
	err := c.genl(ctx, "list pnetids", PNETFamilyName, cmdPNETGet, netlink.Dump, nil, func(_ uint8, attrs []byte) error {
		var p pnetAnswer
		err := unmarshalAttrs(attrs, &p)
		if p.ID != "" && err == nil {
			s = append(s, PNET(p))
		}
		return err
	})
	return s, err
}

// AddPNET implements [Control].
func (c *Client) AddPNET(ctx context.Context, p PNET) error {
	return c.changePNET(ctx, "add pnetid", cmdPNETAdd, p)
}

// RemovePNET implements [Control].
func (c *Client) RemovePNET(ctx context.Context, id string) error {
	return c.changePNET(ctx, "remove pnetid", cmdPNETDel, PNET{ID: id})
}

func (c *Client) changePNET(ctx context.Context, op string, cmd uint8, p PNET) error {
	attrs, err := marshalAttrs((*pnetRequest)(&p))
	if err != nil {
		return &OpError{Op: op, Backend: c.backend, Object: p.ID, Err: err}
	}
	return withObject(c.genl(ctx, op, PNETFamilyName, cmd, netlink.Acknowledge, attrs, nil), p.ID)
}

// FlushPNET implements [Control].
func (c *Client) FlushPNET(ctx context.Context) error {
	return c.genl(ctx, "flush pnetids", PNETFamilyName, cmdPNETFlush, netlink.Acknowledge, nil, nil)
}

// Connections implements [Control].
func (c *Client) Connections(ctx context.Context) ([]Connection, error) {
	const op = "list connections"
	var s []Connection
	err := c.locked(ctx, func(ctx context.Context) error {
		return c.transact(ctx, netlinkSockDiag, func(conn *netlink.Conn) error {
			req := netlink.Message{
				Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
				Data:   appendDiagRequest(nil, diagExtConnInfo|diagExtLgrInfo|diagExtDMBInfo),
			}
			msgs, err := retry(func() ([]netlink.Message, error) { return exchange(conn, req) })
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w: no sock_diag handler for AF_SMC", ErrNoBackend)
			}
			if err != nil {
				return err
			}
			for _, m := range msgs {
				if m.Header.Type != sockDiagByFamily {
					continue
				}
				x, err := parseDiag(m.Data)
				if err != nil {
					return err
				}
				s = append(s, x)
			}
			return nil
		})
	})
	if err != nil {
		return nil, c.opError(op, "", err)
	}
	return s, nil
}
