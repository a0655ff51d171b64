// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/trace/decode"
	"smcr/smc"

	"github.com/spf13/cobra"
)

const formatText = "text"

// allTypes stands for all types of events in --type.
const allTypes = "all"

// defaultTypes are the types without --type. RoCE packets are many more than messages.
var defaultTypes = []string{string(decode.CLC), string(decode.LLC), string(decode.CDC)}

type options struct {
	*cmdutil.Factory
	file    string
	pcapng  string
	format  string
	verbose bool

	types           []string
	conn, peer, qpn string
	filter          decode.Filter
}

// NewCmd returns the command smcr trace.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	opts := &options{Factory: f}
	cmd := &cobra.Command{
		Use:   "trace -r FILE",
		Short: "Show the messages of SMC-R in a capture file",
		Long: "Show the CLC, LLC and CDC messages and the RoCE packets of a capture file, one line\n" +
			"each. The file has the format pcap or pcapng, of tcpdump or Wireshark, and may be\n" +
			"compressed with gzip. '-' reads standard input.\n\n" +
			"A line has the time, the type, the two ends, the queue pairs, the message and its\n" +
			"most important fields. smcr knows the queue pair of the source and the connection of\n" +
			"a CDC message only if the capture has the CLC or LLC messages that name them.\n\n" +
			"Payload of programs is not shown.",
		Example: "  smcr trace -r capture.pcap\n" +
			"  smcr trace -r capture.pcap --type all -v\n" +
			"  smcr trace -r capture.pcap --conn 10.1.0.2:8080 -o json\n" +
			"  tcpdump -U -w - udp port 4791 or tcp | smcr trace -r -\n" +
			"  smcr trace -r capture.pcap --type clc --pcapng clc.pcapng",
		Args: cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.complete(cmd); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return opts.run(ctx)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&opts.file, "read", "r", "", "read the packets of a capture `file`")
	fl.StringVar(&opts.pcapng, "pcapng", "", "also write the packets of the events that are shown to this `file`, for Wireshark; '-' is standard output, in place of the text")
	fl.BoolVarP(&opts.verbose, "verbose", "v", false, "show all fields of each event")
	fl.StringSliceVarP(&opts.types, "type", "t", defaultTypes, "show only events of these `types`: clc, llc, cdc, roce or all; the default is clc, llc and cdc")
	fl.StringVar(&opts.conn, "conn", "", "show only the CLC and CDC messages of connections with this `address:port` at one end")
	fl.StringVar(&opts.peer, "peer", "", "show only events with this `address` at one end")
	fl.StringVar(&opts.qpn, "qpn", "", "show only events of the queue pair with this `number`, such as 17 or 0x11, at one end")
	cmdutil.AddFormatFlag(cmd, &opts.format, formatText, cmdutil.FormatJSON)
	words := append(slices.Clone(defaultTypes), string(decode.RoCE), allTypes)
	// The error of an unknown name is one of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"conn", "peer", "qpn"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// complete reads the values of the flags.
func (o *options) complete(cmd *cobra.Command) error {
	if o.file == "" {
		return cmdutil.CommandError(cmd, "a capture file is required: -r FILE")
	}
	for _, t := range o.types {
		t = strings.ToLower(strings.TrimSpace(t))
		switch {
		case t == allTypes:
			o.filter.Types = append(o.filter.Types, decode.Types...)
		case slices.Contains(decode.Types, decode.Type(t)):
			o.filter.Types = append(o.filter.Types, decode.Type(t))
		default:
			return cmdutil.CommandError(cmd, "unknown type %q: choose one or more of clc, llc, cdc, roce, all", t)
		}
	}
	var err error
	if o.conn != "" {
		if o.filter.Conn, err = netip.ParseAddrPort(o.conn); err != nil {
			return cmdutil.CommandError(cmd, "invalid connection %q: must be ADDRESS:PORT, such as 10.1.0.2:8080 or [fd00::2]:8080", o.conn)
		}
		o.filter.Conn = netip.AddrPortFrom(o.filter.Conn.Addr().Unmap(), o.filter.Conn.Port())
	}
	if o.peer != "" {
		if o.filter.Peer, err = netip.ParseAddr(o.peer); err != nil {
			return cmdutil.CommandError(cmd, "invalid peer %q: must be an IP address", o.peer)
		}
		o.filter.Peer = o.filter.Peer.Unmap()
	}
	if o.qpn != "" {
		n, err := strconv.ParseUint(o.qpn, 0, 32)
		if err != nil || n > smc.Max24 {
			return cmdutil.CommandError(cmd, "invalid queue pair number %q: must be a number up to 0xffffff, such as 17 or 0x11", o.qpn)
		}
		o.filter.QPN, o.filter.HasQPN = smc.QPN(n), true
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	out, err := newSink(o)
	if err != nil {
		return err
	}
	err = o.readFile(ctx, out)
	if cerr := out.close(); err == nil {
		err = cerr
	}
	return err
}

// version returns the name of the program for a capture file.
func (o *options) program() string { return strings.TrimSpace(fmt.Sprintf("smcr %s", o.Version)) }
