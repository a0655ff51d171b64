// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
)

// dump performs a dump of SMC_GEN_NETLINK. Dumps take no attributes.
func (c *Client) dump(ctx context.Context, op string, cmd uint8, a answer) error {
	return c.genl(ctx, op, FamilyName, cmd, netlink.Dump, nil, a)
}

// do performs a change of SMC_GEN_NETLINK.
func (c *Client) do(ctx context.Context, op string, cmd uint8, attrs []byte) error {
	return c.genl(ctx, op, FamilyName, cmd, netlink.Acknowledge, attrs, answer{})
}

// codecOf means that a *T is an attrCodec.
type codecOf[T any] interface {
	*T
	attrCodec
}

// dumpRows returns a table whose rows are nests of type typ.
func dumpRows[T any, P codecOf[T]](ctx context.Context, c *Client, op string, cmd uint8, typ uint16) ([]T, error) {
	var s []T
	err := c.dump(ctx, op, cmd, answer{
		begin: func() { s = nil },
		parse: func(_ uint8, attrs []byte) error {
			var zero T
			s = append(s, zero)
			ok, err := unnestAttr(attrs, typ, P(&s[len(s)-1]))
			if !ok || err != nil {
				s = s[:len(s)-1]
			}
			return err
		},
	})
	return s, err
}

// dumpOne decodes the last answer of a dump of one row. The row is a nest of type typ, or
// has no nest if typ is zero.
func dumpOne[T any, P codecOf[T]](ctx context.Context, c *Client, op string, cmd uint8, typ uint16) (T, error) {
	var x T
	err := c.dump(ctx, op, cmd, answer{
		begin: func() { x = *new(T) },
		parse: func(_ uint8, attrs []byte) error {
			if typ == 0 {
				return unmarshalAttrs(attrs, P(&x))
			}
			_, err := unnestAttr(attrs, typ, P(&x))
			return err
		},
	})
	return x, err
}

// SysInfo implements [Control].
func (c *Client) SysInfo(ctx context.Context) (SysInfo, error) {
	return dumpOne[SysInfo](ctx, c, "get system information", cmdGetSysInfo, attrSysInfo)
}

// LinkGroups implements [Control].
func (c *Client) LinkGroups(ctx context.Context) ([]LinkGroup, error) {
	return dumpRows[LinkGroup](ctx, c, "list link groups", cmdGetLgrSMCR, attrLgrSMCR)
}

// Links implements [Control].
func (c *Client) Links(ctx context.Context) ([]Link, error) {
	var s []Link
	var g LinkGroup // the link group of the links that follow
	err := c.dump(ctx, "list links", cmdGetLinkSMCR, answer{
		begin: func() { s, g = nil, LinkGroup{} },
		parse: func(cmd uint8, attrs []byte) error {
			var next LinkGroup
			ok, err := unnestAttr(attrs, attrLgrSMCR, &next)
			if err != nil {
				return err
			}
			if ok {
				g = next
			}
			s = append(s, Link{LinkGroup: g.ID, Role: g.Role, Type: g.Type})
			ok, err = unnestAttr(attrs, attrLinkSMCR, &s[len(s)-1])
			if !ok || err != nil {
				s = s[:len(s)-1]
			}
			return err
		},
	})
	return s, err
}

// DeleteLink implements [Control].
func (c *Client) DeleteLink(ctx context.Context, group LinkGroupID, link uint8) error {
	return c.deletion(ctx, "delete link", cmdOwnDeleteLink, deleteRequest{group, link}, fmt.Sprintf("%s %d", group, link))
}

// DeleteLinkGroup implements [Control].
func (c *Client) DeleteLinkGroup(ctx context.Context, group LinkGroupID) error {
	return c.deletion(ctx, "delete link group", cmdOwnDeleteLinkGroup, deleteRequest{Group: group}, group.String())
}

// deletion performs a command of SMCR_STACK, which only a stack in user space has.
func (c *Client) deletion(ctx context.Context, op string, cmd uint8, r deleteRequest, object string) error {
	attrs, err := marshalAttrs(&r)
	if err != nil {
		return &OpError{Op: op, Backend: c.backend, Object: object, Err: err}
	}
	err = c.genl(ctx, op, OwnFamilyName, cmd, netlink.Acknowledge, attrs, answer{})
	return withObject(ownFamily(ctx, c, op, err), object)
}

// ownFamily replaces the error of a command of SMCR_STACK by ErrNotSupported if the stack is
// that of the kernel, which does not have this family.
func ownFamily(ctx context.Context, c *Client, op string, err error) error {
	if errors.Is(err, ErrNoBackend) {
		if _, serr := c.SysInfo(ctx); serr == nil {
			return &OpError{Op: op, Backend: c.backend, Err: ErrNotSupported}
		}
	}
	return err
}

// Trace implements [Control].
func (c *Client) Trace(ctx context.Context, r TraceRequest) (Trace, error) {
	const op = "trace"
	attrs, err := marshalAttrs(&r)
	if err != nil {
		return Trace{}, &OpError{Op: op, Backend: c.backend, Err: err}
	}
	var t Trace
	err = c.genl(ctx, op, OwnFamilyName, cmdOwnTrace, netlink.Dump, attrs, answer{begin: func() { t = Trace{} }, parse: t.parse})
	return t, ownFamily(ctx, c, op, err)
}

// Devices implements [Control].
func (c *Client) Devices(ctx context.Context) ([]Device, error) {
	return dumpRows[Device](ctx, c, "list RoCE devices", cmdGetDevSMCR, attrDevSMCR)
}

// DevicesD implements [ControlSMCD].
func (c *Client) DevicesD(ctx context.Context) ([]Device, error) {
	return dumpRows[Device](ctx, c, "list ISM devices", cmdGetDevSMCD, attrDevSMCD)
}

// LinkGroupsD implements [ControlSMCD].
func (c *Client) LinkGroupsD(ctx context.Context) ([]LinkGroupD, error) {
	return dumpRows[LinkGroupD](ctx, c, "list SMC-D link groups", cmdGetLgrSMCD, attrLgrSMCD)
}

// Stats implements [Control].
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	s, err := dumpOne[statsAttrs](ctx, c, "get statistics", cmdGetStats, attrStats)
	return Stats(s), err
}

// Fallbacks implements [Control].
func (c *Client) Fallbacks(ctx context.Context) (Fallbacks, error) {
	var f Fallbacks
	err := c.dump(ctx, "get fallback statistics", cmdGetFbackStats, answer{
		begin: func() { f = Fallbacks{} },
		parse: func(_ uint8, attrs []byte) error {
			var a fallbackAttrs
			ok, err := unnestAttr(attrs, attrFbackStats, &a)
			if ok && err == nil {
				addAnswer(&f, a)
			}
			return err
		},
	})
	return f, err
}

// UEIDs implements [Control].
func (c *Client) UEIDs(ctx context.Context) ([]string, error) {
	var s []string
	err := c.dump(ctx, "list user enterprise IDs", cmdDumpUEID, answer{
		begin: func() { s = nil },
		parse: func(_ uint8, attrs []byte) error {
			var u ueid
			err := unmarshalAttrs(attrs, &u)
			if u != "" && err == nil {
				s = append(s, string(u))
			}
			return err
		},
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
	return dumpOne[SEID](ctx, c, "get system enterprise ID", cmdDumpSEID, 0)
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
	h, err := dumpOne[hsLimitation](ctx, c, "get handshake limitation", cmdDumpHSLimitation, 0)
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
	err := c.genl(ctx, "list pnetids", PNETFamilyName, cmdPNETGet, netlink.Dump, nil, answer{
		begin: func() { s = nil },
		parse: func(_ uint8, attrs []byte) error {
			var p pnetAnswer
			err := unmarshalAttrs(attrs, &p)
			if p.ID != "" && err == nil {
				s = append(s, PNET(p))
			}
			return err
		},
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
	return withObject(c.genl(ctx, op, PNETFamilyName, cmd, netlink.Acknowledge, attrs, answer{}), p.ID)
}

// FlushPNET implements [Control].
func (c *Client) FlushPNET(ctx context.Context) error {
	return c.genl(ctx, "flush pnetids", PNETFamilyName, cmdPNETFlush, netlink.Acknowledge, nil, answer{})
}

// Connections implements [Control].
func (c *Client) Connections(ctx context.Context) ([]Connection, error) {
	var s []Connection
	err := c.EachConnection(ctx, func() { s = nil }, func(x *Connection) { s = append(s, *x) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// EachConnection calls each with each row of [Control.Connections] when it arrives, so that
// the table is never in memory. The row is valid during the call. EachConnection calls begin
// before the first row, and again if the table has changed and is read from its beginning:
// the rows before that do not count. The functions must not use the Client.
func (c *Client) EachConnection(ctx context.Context, begin func(), each func(*Connection)) error {
	const op = "list connections"
	err := c.locked(ctx, func(ctx context.Context) error {
		return c.transact(ctx, netlinkSockDiag, func(conn *netlink.Conn) error {
			req := netlink.Message{
				Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump},
				Data:   appendDiagRequest(nil, diagExtConnInfo|diagExtLgrInfo|diagExtDMBInfo),
			}
			err := repeatDump(func() error {
				begin()
				return exchange(conn, req, func(m netlink.Message) error {
					if m.Header.Type != sockDiagByFamily {
						return nil
					}
					x, err := parseDiag(m.Data)
					if err == nil {
						each(&x)
					}
					return err
				})
			})
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w: no sock_diag handler for AF_SMC", ErrNoBackend)
			}
			return err
		})
	})
	if err != nil {
		return c.opError(op, "", err)
	}
	return nil
}
