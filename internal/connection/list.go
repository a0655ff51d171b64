// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"
	"smcr/smc"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr connection.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "connection",
		Aliases: []string{"conn"},
		Short:   "Show SMC connections",
	})
	cmd.AddCommand(newCmdList(f, nil))
	return cmd
}

type listOptions struct {
	watch.ListOptions
	all bool

	state, mode, role, group, peer, netdev, ibdev cmdutil.Filter
}

func newCmdList(f *cmdutil.Factory, runF func(*listOptions) error) *cobra.Command {
	opts := &listOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "list [ID...]",
		Aliases: []string{"show"},
		Short:   "List connections",
		Long: "List the connections of SMC sockets in this network namespace. Arguments select\n" +
			"connections by the inode of the socket, or by one of its two addresses with the port.\n\n" +
			"Mode is SMCR, SMCD, LOCAL, or TCP with the reason why the connection became plain\n" +
			"TCP: the code found here, and after a slash the one that the peer sent. LOCAL\n" +
			"joins two programs of this machine directly; nobody counts its bytes. The list\n" +
			"includes connections of programs under 'smcr run' that were TCP from the start.\n" +
			"--all includes sockets that listen or have no connection yet; so does --state\n" +
			"with one of their states.",
		Example: "  smcr connection list\n  smcr connection list --mode tcp --peer 10.1.0.0/16\n  smcr connection list --all -o json",
		RunE:    cmdutil.RunE(opts, runF, listRun),
	}
	cmd.Flags().BoolVarP(&opts.all, "all", "a", false, "include sockets that listen or have no connection yet")
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatWide, cmdutil.FormatJSON)
	opts.AddNames(cmd, "connection", identifier, cobra.NoFileCompletions)
	cmdutil.AddChoiceFilter(cmd, &opts.state, "state", "show only connections in this `state`", "ACTIVE", "INIT", "CLOSED", "LISTEN",
		"PEERCLOSEWAIT1", "PEERCLOSEWAIT2", "APPCLOSEWAIT1", "APPCLOSEWAIT2", "APPFINCLOSEWAIT", "PEERFINCLOSEWAIT",
		"PEERABORTWAIT", "PROCESSABORT")
	cmdutil.AddChoiceFilter(cmd, &opts.mode, "mode", "show only connections of this `mode`", "SMCR", "SMCD", "LOCAL", "TCP")
	cmdutil.AddRoleFilter(cmd, &opts.role)
	cmdutil.AddLinkGroupFilter(cmd, &opts.group, f)
	cmdutil.AddFilter(cmd, &opts.peer, "peer", "show only connections to this `peer`: address, address with port, or prefix", f.CompletePeers())
	cmdutil.AddFilter(cmd, &opts.netdev, "netdev", "show only connections over this network `device`", cmdutil.CompleteNetDevs)
	cmdutil.AddFilter(cmd, &opts.ibdev, "ibdev", "show only connections over this RoCE `device`", f.CompleteIBDevs())
	return cmd
}

// identifier reads what names a connection.
func identifier(s string) (told, key string, err error) {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n != 0 {
		return s, fmt.Sprint(n), nil
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		key = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
		return key, key, nil
	}
	return "", "", fmt.Errorf("must be the inode of a socket or ADDRESS:PORT")
}

// names returns what names a connection.
func names(c *nl.Connection) []string {
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

// A connJSON is a connection in JSON.
type connJSON struct {
	Stack     string        `json:"stack"`
	State     string        `json:"state"`
	Mode      string        `json:"mode"`
	Local     string        `json:"local"`
	Remote    string        `json:"remote"`
	NetDev    string        `json:"netdev,omitempty"`
	UID       uint32        `json:"uid"`
	Inode     uint64        `json:"inode"`
	Cookie    uint64        `json:"cookie,omitempty"`
	PID       uint32        `json:"pid,omitempty"`
	Command   string        `json:"command,omitempty"`
	LinkGroup string        `json:"linkgroup,omitempty"`
	TXBytes   *uint64       `json:"tx_bytes,omitempty"` // nil where nobody counts them: LOCAL
	RXBytes   *uint64       `json:"rx_bytes,omitempty"`
	ShutRecv  bool          `json:"shutdown_recv"`
	ShutSend  bool          `json:"shutdown_send"`
	Fallback  *fallbackJSON `json:"fallback,omitempty"`
	Info      *infoJSON     `json:"info,omitempty"`
	Link      *linkJSON     `json:"link,omitempty"`
}

type fallbackJSON struct {
	Reason string `json:"reason"`
	Text   string `json:"text,omitempty"`
	Peer   string `json:"peer,omitempty"`
	// PeerText is what the peer's code means.
	PeerText string `json:"peer_text,omitempty"`
}

type infoJSON struct {
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

type linkJSON struct {
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

func toJSON(r nl.Row[nl.Connection], netdev func(uint32) string) connJSON {
	c := &r.Value
	j := connJSON{
		Stack: r.Stack, State: c.State.String(), Mode: c.Mode.String(), Local: address(c.Local), Remote: address(c.Remote),
		NetDev: netdev(c.NetDev), UID: c.UID, Inode: c.Inode, Cookie: c.Cookie, PID: c.PID, Command: c.Command,
		ShutRecv: c.Shutdown&nl.ShutdownRecv != 0, ShutSend: c.Shutdown&nl.ShutdownSend != 0,
	}
	if c.Mode != nl.ModeLocal {
		j.TXBytes, j.RXBytes = &c.TXBytes, &c.RXBytes
	}
	if c.LinkGroup != 0 {
		j.LinkGroup = c.LinkGroup.String()
	}
	if c.Mode == nl.ModeTCP && c.Fallback != (nl.ConnFallback{}) {
		j.Fallback = &fallbackJSON{Reason: code(c.Fallback.Reason), Text: smc.Diagnosis(c.Fallback.Reason).Text()}
		if c.Fallback.Peer != 0 {
			j.Fallback.Peer = code(c.Fallback.Peer)
			j.Fallback.PeerText = smc.Diagnosis(c.Fallback.Peer).Text()
		}
	}
	if i := c.Info; i != nil {
		j.Info = &infoJSON{
			i.Token, i.Sndbuf, i.RMBE, i.PeerRMBE, i.RXProd.String(), i.RXCons.String(),
			i.TXProd.String(), i.TXCons.String(), i.TXPrep.String(), i.TXSent.String(), i.TXFin.String(),
		}
	}
	if l := c.Link; l != nil {
		j.Link = &linkJSON{l.LinkID, l.IBDev, l.IBPort, l.GID.String(), l.PeerGID.String(), l.Role.Short()}
	}
	return j
}

func listRun(ctx context.Context, opts *listOptions) error {
	return watch.List[nl.Connection, connJSON]{
		Read:   nl.Control.Connections,
		Names:  names,
		Filter: watch.Keep(opts.keep),
		JSON:   func(r nl.Row[nl.Connection]) connJSON { return toJSON(r, opts.NetDev) },
		Table:  table,
	}.Show(ctx, &opts.ListOptions)
}

// keep reports whether a connection is one of those that were asked for.
func (o *listOptions) keep(c *nl.Connection) bool {
	if !o.all && !o.state.Any() && !o.Names.Any() && (c.State == smc.StateListen || c.State == smc.StateInit) {
		return false
	}
	role, ibdev := "", ""
	if c.Link != nil {
		role, ibdev = c.Link.Role.Short(), c.Link.IBDev
	}
	return o.state.Keep(c.State.String()) && o.mode.Keep(c.Mode.String()) && o.role.Keep(role) &&
		o.group.Keep(c.LinkGroup.String()) && o.peer.KeepAddr(c.Remote) &&
		o.netdev.Keep(o.NetDev(c.NetDev)) && o.ibdev.Keep(ibdev)
}

// mode returns the mode with the reasons of a fallback.
func mode(c *nl.Connection) string {
	s := c.Mode.String()
	if c.Mode == nl.ModeTCP && c.Fallback != (nl.ConnFallback{}) {
		s += " " + code(c.Fallback.Reason)
		if c.Fallback.Peer != 0 {
			s += "/" + code(c.Fallback.Peer)
		}
	}
	return s
}

// reason returns why a connection is TCP.
func reason(c *nl.Connection) string {
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

func table(rows []nl.Row[nl.Connection], wide bool) *output.Table {
	names := []string{"State", "Local-Address", "Peer-Address", "Mode", "LG-ID", "Process", "Reason"}
	if wide {
		names = append(names, ">UID", ">Inode", "Token", ">Sndbuf", ">RMBE", ">Peer-RMBE", ">TX-Bytes", ">RX-Bytes", "IB-Dev", ">Link")
	}
	t := output.NewTable(append(names, "Stack")...)
	for _, r := range rows {
		c := &r.Value
		lg, process := "-", "-"
		if c.LinkGroup != 0 {
			lg = c.LinkGroup.String()
		}
		if c.PID != 0 {
			process = fmt.Sprintf("%s/%d", c.Command, c.PID)
		}
		cells := []any{c.State, output.Or(address(c.Local)), output.Or(address(c.Remote)), mode(c), lg, process, output.Or(reason(c))}
		if wide {
			cells = append(cells, c.UID, c.Inode)
			if i := c.Info; i != nil {
				cells = append(cells, fmt.Sprintf("%08x", i.Token), i.Sndbuf, i.RMBE, i.PeerRMBE)
			} else {
				cells = append(cells, "-", "-", "-", "-")
			}
			if c.Mode == nl.ModeLocal { // nobody counts them
				cells = append(cells, "-", "-")
			} else {
				cells = append(cells, c.TXBytes, c.RXBytes)
			}
			if l := c.Link; l != nil {
				cells = append(cells, output.Or(l.IBDev), l.LinkID)
			} else {
				cells = append(cells, "-", "-")
			}
		}
		t.Add(append(cells, r.Stack)...)
	}
	return t
}
