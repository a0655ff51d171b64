// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"smcr/internal/printable"
	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/smc"
)

const ssUsage = "Usage: %s [ OPTIONS ]\n" +
	"\t-h, --help          this message\n" +
	"\t-v, --version       show version information\n" +
	"\t-a, --all           show all sockets\n" +
	"\t-l, --listening     show listening sockets\n" +
	"\t-d, --debug         show debug socket information\n" +
	"\t-W, --wide          do not truncate IP addresses\n" +
	"\t-D, --smcd          show detailed SMC-D information (shows only SMC-D sockets)\n" +
	"\t-R, --smcr          show detailed SMC-R information (shows only SMC-R sockets)\n" +
	"\tno OPTIONS          show all connected sockets\n"

var ssLongOptions = []tool.LongOption{
	{Name: "all", Short: 'a'}, {Name: "debug", Short: 'd'}, {Name: "listening", Short: 'l'},
	{Name: "smcd", Short: 'D'}, {Name: "smcr", Short: 'R'}, {Name: "version", Short: 'v'},
	{Name: "wide", Short: 'W'}, {Name: "help", Short: 'h'},
}

// ssOptions are the options of a command line of smcss.
type ssOptions struct {
	all, listening, debug, wide, smcd, smcr bool
}

// smcSS runs smcss, which lists the SMC sockets, and returns its exit status.
func smcSS(ctx context.Context, e *tool.Env, args []string) int {
	wrong := func(message string) int {
		if message != "" {
			e.Errorf("%s\n", message)
		}
		e.Errorf(ssUsage, e.Name)
		return 1
	}
	var o ssOptions
	g := tool.Getopt{Program: e.Name, Short: "aldDRhvW", Long: ssLongOptions}
	g.Parse(args)
	for {
		opt, _, message := g.Next()
		if opt == 0 {
			break
		}
		switch opt {
		case 'a':
			o.all = true
		case 'l':
			o.listening = true
		case 'd':
			o.debug = true
		case 'D':
			o.smcd = true
		case 'R':
			o.smcr = true
		case 'W':
			o.wide = true
		case 'v':
			e.Printf("smcss utility, smc-tools-%s\n", tool.Version)
			return 0
		case 'h':
			e.Printf(ssUsage, e.Name)
			return 0
		default:
			return wrong(message)
		}
	}
	switch {
	case o.smcr && o.smcd:
		return wrong("--smcd together with --smcr is not supported")
	case o.listening && o.debug:
		return wrong("--listening together with --debug is not supported")
	case o.listening && o.all:
		return wrong("--listening together with --all is not supported")
	case o.listening && o.smcr:
		return wrong("--listening together with --smcr is not supported")
	case o.listening && o.smcd:
		return wrong("--listening together with --smcd is not supported")
	}

	o.header(e.IO.Out)
	ctl, err := e.Open(ctx)
	var list []nl.Connection
	if err == nil {
		defer ctl.Close()
		list, err = ctl.Connections(ctx)
		if errors.Is(err, nl.ErrNoBackend) {
			err = tool.ErrNoModule
		}
	}
	if errors.Is(err, tool.ErrNoModule) {
		// smcss of smc-tools prints this for an error of the kernel.
		e.Errorf("RTNETLINK answers: Success\n")
		return 1
	}
	if err != nil {
		return e.OpenFailed(err, "RTNETLINK answers")
	}
	defer e.Buffer()()
	for _, c := range list {
		if o.shows(c) {
			o.row(e.IO.Out, c)
		}
	}
	return 0
}

// header prints the names of the columns.
func (o ssOptions) header(w io.Writer) {
	fmt.Fprint(w, "State          UID   Inode   Local Address           Peer Address            Intf Mode ")
	if o.debug {
		fmt.Fprint(w, "Shutd Token    Sndbuf   Rcvbuf   Peerbuf  rxprod-Cursor rxcons-Cursor rxFlags "+
			"txprod-Cursor txcons-Cursor txFlags txprep-Cursor txsent-Cursor txfin-Cursor  ")
	}
	if o.smcr {
		fmt.Fprint(w, "Role IB-device       Port Linkid GID                                      Peer-GID")
	}
	if o.smcd {
		fmt.Fprint(w, "GID              Token            Peer-GID         Peer-Token       Linkid")
	}
	fmt.Fprintln(w)
}

// shows reports whether the options select a socket.
func (o ssOptions) shows(c nl.Connection) bool {
	switch {
	case o.listening && c.State != smc.StateListen:
		return false
	case !o.listening && !o.all && (c.State == smc.StateListen || c.State == smc.StateInit):
		return false
	case o.smcr && c.Mode != nl.ModeSMCR, o.smcd && c.Mode != nl.ModeSMCD:
		return false
	}
	return true
}

// row prints the columns of a socket, which depend on its state.
func (o ssOptions) row(w io.Writer, c nl.Connection) {
	defer fmt.Fprintln(w)
	printable.Fprintf(w, "%-14s %05d %07d ", stateText(c.State), int32(c.UID), c.Inode)
	if c.State == smc.StateInit {
		return
	}
	printable.Fprintf(w, "%-*s ", addressWidth, o.address(c.Local))
	if c.State == smc.StateListen {
		return
	}
	printable.Fprintf(w, "%-*s %04x ", addressWidth, o.address(c.Remote), c.NetDev)
	if c.State == smc.StateClosed {
		return
	}
	switch c.Mode {
	case nl.ModeTCP:
		printable.Fprintf(w, "TCP 0x%08x", c.Fallback.Reason)
		if c.Fallback.Peer != 0 {
			printable.Fprintf(w, "/0x%08x", c.Fallback.Peer)
		}
		return
	case nl.ModeSMCD:
		fmt.Fprint(w, "SMCD ")
	default:
		fmt.Fprint(w, "SMCR ")
	}
	if o.debug {
		printDebug(w, c)
	}
	if l := c.Link; o.smcr && l != nil {
		role := "SERV"
		if l.Role == smc.Client {
			role = "CLNT"
		}
		printable.Fprintf(w, "%4s %-15s %02x   %02x     %-40s %s", role, l.IBDev, l.IBPort, l.LinkID, l.GID, l.PeerGID)
	}
	if d := c.DMB; o.smcd && d != nil {
		printable.Fprintf(w, "%016x %016x %016x %016x %08x ", d.GID, d.Token, d.PeerGID, d.PeerToken, d.LinkID)
	}
}

// printDebug prints the columns of --debug.
func printDebug(w io.Writer, c nl.Connection) {
	in, out := '<', '>'
	if c.Shutdown&nl.ShutdownRecv != 0 {
		in = 'R'
	}
	if c.Shutdown&nl.ShutdownSend != 0 {
		out = 'W'
	}
	printable.Fprintf(w, " %c-%c  ", in, out)
	i := c.Info
	if i == nil {
		return
	}
	printable.Fprintf(w, "%08x %08x %08x %08x ", i.Token, i.Sndbuf, i.RMBE, i.PeerRMBE)
	printable.Fprintf(w, "%s %s %02x:%02x   ", i.RXProd, i.RXCons, i.RXProdFlags, i.RXStateFlags)
	printable.Fprintf(w, "%s %s %02x:%02x   ", i.TXProd, i.TXCons, i.TXProdFlags, i.TXStateFlags)
	printable.Fprintf(w, "%s %s %s ", i.TXPrep, i.TXSent, i.TXFin)
}

// stateText returns the name of a state. One name differs from that of smcr.
func stateText(s smc.ConnState) string {
	switch s {
	case smc.StateAppFinCloseWait:
		return "APPFINCLOSEWAIT1"
	case smc.StateActive, smc.StateInit, smc.StateClosed, smc.StateListen,
		smc.StatePeerCloseWait1, smc.StatePeerCloseWait2, smc.StateAppCloseWait1, smc.StateAppCloseWait2,
		smc.StatePeerFinCloseWait, smc.StatePeerAbortWait, smc.StateProcessAbort:
		return s.String()
	case 0:
		return "0?"
	}
	return fmt.Sprintf("%#x?", uint8(s))
}

// addressWidth is the width of an address with its port. Without -W, longer addresses are
// cut.
const addressWidth = 23

// address returns an address and a port without brackets. The unspecified address of
// IPv6 is printed as that of IPv4, because the kernel reports them alike.
func (o ssOptions) address(a netip.AddrPort) string {
	ip := a.Addr()
	if !ip.IsValid() || ip == netip.IPv6Unspecified() {
		ip = netip.IPv4Unspecified()
	}
	text, port := ip.WithZone("").String(), fmt.Sprint(a.Port())
	if cut := addressWidth - 1 - len(port); !o.wide && len(text) > cut {
		text = text[:cut-2] + ".."
	}
	return text + ":" + port
}
