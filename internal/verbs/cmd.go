// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/verbs/rc"
	"smcr/rdmaverbs/softroce"
	"smcr/smc"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr verbs.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "verbs",
		Short:   "Test RDMA, the layer below SMC",
		Example: "  smcr verbs devices\n  hostA# smcr verbs perf write-bw\n  hostB# smcr verbs perf write-bw hostA",
		Long: "List the software RDMA devices of this network namespace, and use them to test the\n" +
			"path to another host. The other side is smcr, or the usual RDMA test programs on\n" +
			"any RoCE device.",
	})
	cmd.AddCommand(newDevices(f), newGIDs(f), newPingPong(f), newPerf(f))
	return cmd
}

// common is what both kinds of test share.
type common struct {
	*cmdutil.Factory
	host     string // of the server; empty to be it
	device   string
	gid      int
	port     uint16
	ibPort   int
	mtu      int
	patience time.Duration
	format   string
	counters bool
	restore  int // processors of Go before meet
}

// defaultPort is that of the programs.
const defaultPort = 18515

func (c *common) addFlags(cmd *cobra.Command, gidFlag, gidShort string, mtu int, mtuHelp string) {
	fl := cmd.Flags()
	fl.StringVarP(&c.device, "device", "d", "", "software RDMA `device` or its netdev; the default is the device of the connection's local address")
	fl.IntVarP(&c.gid, gidFlag, gidShort, -1, "`index` into the GID table; the default is the RoCEv2 GID of the connection's local address")
	fl.Uint16VarP(&c.port, "port", "p", defaultPort, "TCP `port` to listen on or to connect to")
	fl.IntVarP(&c.ibPort, "ib-port", "i", 1, "`port` of the device; must be 1")
	fl.IntVarP(&c.mtu, "mtu", "m", mtu, mtuHelp)
	fl.DurationVar(&c.patience, "timeout", 30*time.Second, "give up when the peer sends nothing for this `time`")
	fl.BoolVar(&c.counters, "counters", false, "write the packet counters of the device to standard error at the end, as JSON")
	cmdutil.AddFormatFlag(cmd, &c.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	_ = cmd.RegisterFlagCompletionFunc("device", cmdutil.CompleteNetDevs)
	_ = cmd.RegisterFlagCompletionFunc("mtu", cobra.FixedCompletions([]string{"256", "512", "1024", "2048", "4096"}, cobra.ShellCompDirectiveNoFileComp))
}

// take reads the arguments and checks the flags.
func (c *common) take(args []string) error {
	if len(args) == 1 {
		c.host = args[0]
	}
	if c.ibPort != 1 {
		return cmdutil.UsageError("--ib-port %d: a software device has only port 1", c.ibPort)
	}
	if c.patience <= 0 {
		return cmdutil.UsageError("--timeout %v: must be more than 0", c.patience)
	}
	if c.mtu != 0 && mtuCode(c.mtu) == 0 {
		return cmdutil.UsageError("--mtu %d: choose 256, 512, 1024, 2048 or 4096", c.mtu)
	}
	return nil
}

// oneHost takes at most one argument.
func oneHost(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return cmdutil.CommandError(cmd, "expected one HOST, unexpected argument %q", args[1])
	}
	return nil
}

// mtuCode returns the code of a path MTU in bytes, 0 if there is none.
func mtuCode(bytes int) smc.MTU {
	for m := smc.MTU256; m <= smc.MTU4096; m++ {
		if m.Bytes() == bytes {
			return m
		}
	}
	return 0
}

// meet makes the TCP connection to the other side, and opens the device. From
// then until finish one thread runs Go code: it polls, and others that the
// scheduler wakes to look for work take a processor from the peer on this host.
func (c *common) meet(ctx context.Context) (net.Conn, *rc.Source, error) {
	tcp, err := c.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	local, _ := netip.ParseAddrPort(tcp.LocalAddr().String())
	choice := rc.Choice{Device: c.device, GID: c.gid, Local: local.Addr(), Log: slog.New(slog.DiscardHandler)}
	s, err := choice.Open(ctx)
	if err != nil {
		tcp.Close()
		return nil, nil, err
	}
	c.restore = runtime.GOMAXPROCS(1)
	return tcp, s, nil
}

func (c *common) connect(ctx context.Context) (net.Conn, error) {
	port := strconv.Itoa(int(c.port))
	if c.host != "" {
		defer c.IO.Progress("connecting to " + c.host).Stop()
		return (&net.Dialer{Timeout: c.patience}).DialContext(ctx, "tcp", net.JoinHostPort(c.host, port))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if c.format == cmdutil.FormatTable {
		fmt.Fprintf(c.IO.Out, "waiting for a client on TCP port %s\n", port)
	}
	return l.Accept()
}

// finish closes what meet returned.
func (c *common) finish(tcp net.Conn, s *rc.Source) {
	if d, ok := s.Device.(interface{ Counters() softroce.Counters }); ok && c.counters {
		b, err := json.Marshal(d.Counters())
		if err == nil {
			fmt.Fprintf(c.IO.ErrOut, "%s\n", b)
		}
	}
	s.Close()
	tcp.Close()
	runtime.GOMAXPROCS(c.restore)
}

// describe prints who talks to whom.
func (c *common) describe(s *rc.Source, mtu smc.MTU, peer smc.GID) {
	if c.format == cmdutil.FormatTable {
		printable.Fprintf(c.IO.Out, "device %s, GID %d: %v to %v, path MTU %d\n", s.Name(), s.Index, s.GID.GID.Addr(), peer.Addr(), mtu.Bytes())
	}
}
