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
	"smcr/nl"
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
	count   int
	group   nl.LinkGroupID
	pcapng  string
	format  string
	verbose bool

	types                      []string
	conn, peer, qpn, linkGroup string
	filter                     decode.Filter
}

// NewCmd returns the command smcr trace.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	opts := &options{Factory: f}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show the messages of SMC-R, live or from a capture file",
		Long: "Show the CLC, LLC and CDC messages and the RoCE packets that the user-space stack\n" +
			"sends and receives, one line each, until interrupted. Only root and the user who\n" +
			"runs the stack may do this. Without a trace, it costs the stack nothing. If the\n" +
			"output is too slow, events are lost, and smcr says how many.\n\n" +
			"With -r, show those of a capture file: pcap or pcapng, of tcpdump or Wireshark, also\n" +
			"compressed with gzip. '-' reads standard input. smcr then knows the queue pair of\n" +
			"the source and the connection of a CDC message only if the capture has the CLC or\n" +
			"LLC messages that name them.\n\n" +
			"A line has the time, the type, the two ends, the queue pairs, the message and its\n" +
			"most important fields. Payload of programs is not shown.",
		Example: "  smcr trace\n" +
			"  smcr trace --linkgroup 100 --type all -v\n" +
			"  smcr trace --conn 10.1.0.2:8080 -o json\n" +
			"  smcr trace --type all --pcapng - | wireshark -k -i -\n" +
			"  smcr trace -r capture.pcap\n" +
			"  smcr trace -r - < capture.pcap.gz\n" +
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
	fl.StringVarP(&opts.file, "read", "r", "", "show the packets of a capture `file`, not of the stack")
	fl.IntVarP(&opts.count, "count", "c", 0, "end after this `number` of events")
	fl.StringVar(&opts.linkGroup, "linkgroup", "", "show only events of the link group with this `id`; CLC messages belong to none")
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
	for _, name := range []string{"conn", "peer", "qpn", "count"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// complete reads the values of the flags.
func (o *options) complete(cmd *cobra.Command) error {
	if o.count < 0 || cmd.Flags().Changed("count") && o.count == 0 {
		return cmdutil.CommandError(cmd, "invalid count %d: must be at least 1", o.count)
	}
	if o.linkGroup != "" {
		if o.file != "" {
			return cmdutil.CommandError(cmd, "--linkgroup needs the stack: a capture file does not have the IDs of link groups")
		}
		id, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(o.linkGroup), "0x"), 16, 32)
		if err != nil || id == 0 {
			return cmdutil.CommandError(cmd, "invalid link group %q: an identifier has 1 to 8 hexadecimal digits", o.linkGroup)
		}
		o.group = nl.LinkGroupID(id)
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
	if o.file != "" {
		err = o.readFile(ctx, out)
	} else {
		err = o.live(ctx, out)
	}
	if cerr := out.close(); err == nil {
		err = cerr
	}
	return err
}

// program returns the name of the program for a capture file.
func (o *options) program() string { return strings.TrimSpace(fmt.Sprintf("smcr %s", o.Version)) }
