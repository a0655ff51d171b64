// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

func newConnection(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "connection",
		Aliases: []string{"conn"},
		Short:   "Show SMC connections",
		Example: "  smcr connection list\n  smcr connection list --mode tcp",
	})
	cmd.AddCommand(newConnectionList(f))
	return cmd
}

func newConnectionList(f *cmdutil.Factory) *cobra.Command {
	var all bool
	return list[nl.Connection, connectionJSON]{
		source: owned(traffic(nl.Control.Connections)),
		naming: &naming[nl.Connection]{
			what: "connection", parse: connectionName, of: connectionNames, complete: cobra.NoFileCompletions,
		},
		filters: []*filter[nl.Connection]{
			byChoice("state", "show only connections in this `state`", func(c *nl.Connection) string { return c.State.String() },
				"ACTIVE", "INIT", "CLOSED", "LISTEN", "PEERCLOSEWAIT1", "PEERCLOSEWAIT2", "APPCLOSEWAIT1", "APPCLOSEWAIT2",
				"APPFINCLOSEWAIT", "PEERFINCLOSEWAIT", "PEERABORTWAIT", "PROCESSABORT"),
			byChoice("mode", "show only connections of this `mode`", func(c *nl.Connection) string { return c.Mode.String() },
				"SMCR", "SMCD", "TCP"),
			byRole(func(c *nl.Connection) string {
				if c.Link == nil {
					return ""
				}
				return c.Link.Role.Short()
			}),
			byLinkGroup(f, func(c *nl.Connection) string { return c.LinkGroup.String() }),
			byPeer(f, "show only connections to this `peer`: address, address with port, or prefix",
				func(c *nl.Connection) (netip.AddrPort, []string) { return c.Remote, nil }),
			byNetDev("show only connections over this network `device`",
				func(c *nl.Connection) []string { return []string{f.NetDev(c.NetDev)} }),
			byIBDev(f, "show only connections over this RoCE `device`", func(c *nl.Connection) []string {
				if c.Link == nil {
					return nil
				}
				return []string{c.Link.IBDev}
			}),
		},
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVarP(&all, "all", "a", false, "include sockets that listen or have no connection yet")
		},
		keep: func(o *options, c *nl.Connection) bool {
			return all || o.given("state") || o.named() || c.State != smc.StateListen && c.State != smc.StateInit
		},
		layout: connectionColumns,
		hint: func(rows []nl.Row[nl.Connection]) string {
			var why []uint32
			for i := range rows {
				why = append(why, reasonOf(&rows[i].Value))
			}
			return reasonHint(why)
		},
		json: func(r nl.Row[nl.Connection]) connectionJSON { return newConnectionJSON(r, f.NetDev) },
	}.command(f, &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List connections",
		Long: "List the connections of SMC sockets in this network namespace. Arguments select\n" +
			"connections by the inode of the socket, or by one of its two addresses with the port.\n\n" +
			"Mode is SMCR, SMCD, or TCP with the reason why the connection became plain TCP:\n" +
			"the code found here, and after a slash the one that the peer sent. The list\n" +
			"includes connections of programs under 'smcr run' that were TCP from the start.\n" +
			"'smcr explain CODE' says more about a reason, and what to do. --all includes\n" +
			"sockets that listen or have no connection yet; so does --state with one of their\n" +
			"states.",
		Example: "  smcr connection list\n  smcr connection list --mode tcp --peer 10.1.0.0/16\n  smcr connection list --all -o json",
	})
}

// owned adds the processes to connections of programs that keep their sockets: their stack does not know them.
func owned(source source[nl.Connection]) source[nl.Connection] {
	return func(ctx context.Context, f *cmdutil.Factory) ([]nl.Row[nl.Connection], error) {
		rows, err := source(ctx, f)
		name := f.Name()
		for i := range rows {
			name(rows[i].Stack, &rows[i].Value)
		}
		return rows, err
	}
}

// connectionName parses an argument that names a connection.
func connectionName(s string) (shown, name string, err error) {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n != 0 {
		return s, fmt.Sprint(n), nil
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		name = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
		return name, name, nil
	}
	return "", "", errors.New("must be the inode of a socket or ADDRESS:PORT")
}

// connectionNames returns the names of a connection.
func connectionNames(c *nl.Connection) []string {
	s := make([]string, 0, 3)
	if c.Inode != 0 {
		s = append(s, fmt.Sprint(c.Inode))
	}
	for _, a := range []netip.AddrPort{c.Local, c.Remote} {
		if a.IsValid() {
			s = append(s, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String())
		}
	}
	return s
}

// A connectionJSON is a connection in JSON.
type connectionJSON struct {
	Stack     string            `json:"stack"`
	State     string            `json:"state"`
	Mode      string            `json:"mode"`
	Local     string            `json:"local"`
	Remote    string            `json:"remote"`
	NetDev    string            `json:"netdev,omitempty"`
	UID       uint32            `json:"uid"`
	Inode     uint64            `json:"inode"`
	Cookie    uint64            `json:"cookie,omitempty"`
	PID       uint32            `json:"pid,omitempty"`
	Command   string            `json:"command,omitempty"`
	LinkGroup string            `json:"linkgroup,omitempty"`
	TXBytes   uint64            `json:"tx_bytes"`
	RXBytes   uint64            `json:"rx_bytes"`
	ShutRecv  bool              `json:"shutdown_recv"`
	ShutSend  bool              `json:"shutdown_send"`
	Fallback  *connFallbackJSON `json:"fallback,omitempty"`
	Info      *connInfoJSON     `json:"info,omitempty"`
	Link      *connLinkJSON     `json:"link,omitempty"`
}

type connFallbackJSON struct {
	Reason string `json:"reason"`
	Name   string `json:"name,omitempty"`
	Text   string `json:"text,omitempty"`
	Peer   string `json:"peer,omitempty"`
	// PeerName and PeerText are the name and the meaning of the code that the peer sent.
	PeerName string `json:"peer_name,omitempty"`
	PeerText string `json:"peer_text,omitempty"`
}

type connInfoJSON struct {
	Token    uint32 `json:"token"`
	Sndbuf   uint32 `json:"sndbuf_bytes"`
	RMBE     uint32 `json:"rmbe_bytes"`
	PeerRMBE uint32 `json:"peer_rmbe_bytes"`
	RXProd   string `json:"rx_prod"`
	RXCons   string `json:"rx_cons"`
	TXProd   string `json:"tx_prod"`
	TXCons   string `json:"tx_cons"`
	TXPrep   string `json:"tx_prep"`
	TXSent   string `json:"tx_sent"`
	TXFin    string `json:"tx_fin"`
}

type connLinkJSON struct {
	ID      uint8  `json:"id"`
	IBDev   string `json:"ibdev"`
	IBPort  uint8  `json:"ibport"`
	GID     string `json:"gid"`
	PeerGID string `json:"peer_gid"`
	Role    string `json:"role"`
}

func code(c uint32) string { return fmt.Sprintf("0x%08x", c) }

func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func newConnectionJSON(r nl.Row[nl.Connection], netdev func(uint32) string) connectionJSON {
	c := &r.Value
	j := connectionJSON{
		Stack: r.Stack, State: c.State.String(), Mode: c.Mode.String(), Local: address(c.Local), Remote: address(c.Remote),
		NetDev: netdev(c.NetDev), UID: c.UID, Inode: c.Inode, Cookie: c.Cookie, PID: c.PID, Command: c.Command, TXBytes: c.TXBytes, RXBytes: c.RXBytes,
		ShutRecv: c.Shutdown&nl.ShutdownRecv != 0, ShutSend: c.Shutdown&nl.ShutdownSend != 0,
	}
	if c.LinkGroup != 0 {
		j.LinkGroup = c.LinkGroup.String()
	}
	if c.Mode == nl.ModeTCP && c.Fallback != (nl.ConnFallback{}) {
		own, peer := smc.Diagnosis(c.Fallback.Reason), smc.Diagnosis(c.Fallback.Peer)
		j.Fallback = &connFallbackJSON{Reason: code(c.Fallback.Reason), Name: reasons.Name(own), Text: own.Text()}
		if peer != 0 {
			j.Fallback.Peer = code(c.Fallback.Peer)
			j.Fallback.PeerName = reasons.Name(peer)
			j.Fallback.PeerText = peer.Text()
		}
	}
	if i := c.Info; i != nil {
		j.Info = &connInfoJSON{
			i.Token, i.Sndbuf, i.RMBE, i.PeerRMBE, i.RXProd.String(), i.RXCons.String(),
			i.TXProd.String(), i.TXCons.String(), i.TXPrep.String(), i.TXSent.String(), i.TXFin.String(),
		}
	}
	if l := c.Link; l != nil {
		j.Link = &connLinkJSON{l.LinkID, l.IBDev, l.IBPort, l.GID.String(), l.PeerGID.String(), l.Role.Short()}
	}
	return j
}

// connectionMode returns the mode, and the reasons of a fallback.
func connectionMode(c *nl.Connection) string {
	s := c.Mode.String()
	if c.Mode == nl.ModeTCP && c.Fallback != (nl.ConnFallback{}) {
		s += " " + code(c.Fallback.Reason)
		if c.Fallback.Peer != 0 {
			s += "/" + code(c.Fallback.Peer)
		}
	}
	return s
}

// fallbackText returns why a connection is TCP, or "".
func fallbackText(c *nl.Connection) string {
	if c.Mode != nl.ModeTCP || c.Fallback == (nl.ConnFallback{}) {
		return ""
	}
	text := smc.Diagnosis(c.Fallback.Reason).Text()
	if peer := smc.Diagnosis(c.Fallback.Peer); peer != 0 && peer.Text() != "" {
		if text != "" {
			text += ": "
		}
		text += peer.Text()
	}
	return text
}

// reasonOf returns the code that says why a connection is TCP: that of the peer if the peer
// declined. It returns 0 for other connections.
func reasonOf(c *nl.Connection) uint32 {
	if c.Mode != nl.ModeTCP {
		return 0
	}
	if c.Fallback.Peer != 0 {
		return c.Fallback.Peer
	}
	return c.Fallback.Reason
}

// connectionColumns are the columns of smcr connection list.
var connectionColumns = columns[nl.Connection]{
	always: []column[nl.Connection]{
		col("State", func(c *nl.Connection) any { return c.State }),
		col("Local-Address", func(c *nl.Connection) any { return output.Or(address(c.Local)) }),
		col("Peer-Address", func(c *nl.Connection) any { return output.Or(address(c.Remote)) }),
		col("Mode", func(c *nl.Connection) any { return connectionMode(c) }),
		col("LG-ID", func(c *nl.Connection) any {
			if c.LinkGroup == 0 {
				return "-"
			}
			return c.LinkGroup
		}),
		col("Process", func(c *nl.Connection) any {
			if c.PID == 0 {
				return "-"
			}
			return fmt.Sprintf("%s/%d", c.Command, c.PID)
		}),
		col("Reason", func(c *nl.Connection) any { return output.Or(fallbackText(c)) }),
	},
	wide: []column[nl.Connection]{
		col("Reason-Name", func(c *nl.Connection) any { return output.Or(reasons.Name(smc.Diagnosis(reasonOf(c)))) }),
		col(">UID", func(c *nl.Connection) any { return c.UID }),
		col(">Inode", func(c *nl.Connection) any { return c.Inode }),
		col("Token", infoCell(func(i *nl.ConnInfo) any { return fmt.Sprintf("%08x", i.Token) })),
		col(">Sndbuf", infoCell(func(i *nl.ConnInfo) any { return output.Size(i.Sndbuf) })),
		col(">RMBE", infoCell(func(i *nl.ConnInfo) any { return output.Size(i.RMBE) })),
		col(">Peer-RMBE", infoCell(func(i *nl.ConnInfo) any { return output.Size(i.PeerRMBE) })),
		col(">TX-Bytes", bytesCell(func(c *nl.Connection) uint64 { return c.TXBytes })),
		col(">RX-Bytes", bytesCell(func(c *nl.Connection) uint64 { return c.RXBytes })),
		col("IB-Dev", linkCell(func(l *nl.ConnLink) any { return output.Or(l.IBDev) })),
		col(">Link", linkCell(func(l *nl.ConnLink) any { return l.LinkID })),
	},
}

// infoCell returns a cell of what only connections over SMC have.
func infoCell(cell func(*nl.ConnInfo) any) func(*nl.Connection) any {
	return func(c *nl.Connection) any {
		if c.Info == nil {
			return "-"
		}
		return cell(c.Info)
	}
}

// linkCell returns a cell of the link of a connection.
func linkCell(cell func(*nl.ConnLink) any) func(*nl.Connection) any {
	return func(c *nl.Connection) any {
		if c.Link == nil {
			return "-"
		}
		return cell(c.Link)
	}
}

// bytesCell returns a cell of a byte counter.
func bytesCell(count func(*nl.Connection) uint64) func(*nl.Connection) any {
	return func(c *nl.Connection) any { return output.Size(count(c)) }
}
