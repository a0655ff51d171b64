// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/verbs/pingpong"

	"github.com/spf13/cobra"
)

type pingPongOptions struct {
	common
	pingpong.Options
	events bool
	sl     int
}

func newPingPong(f *cmdutil.Factory) *cobra.Command {
	o := &pingPongOptions{common: common{Factory: f}}
	cmd := &cobra.Command{
		Use:   "pingpong [HOST]",
		Short: "Send messages back and forth, as ibv_rc_pingpong does",
		Long: "Send messages back and forth over one queue pair, with SEND. Without HOST, wait for\n" +
			"one client. The other side is 'smcr verbs pingpong' or ibv_rc_pingpong, with the\n" +
			"same size and number of messages.\n\n" +
			"--check compares each message with the expected one; both sides need the option.\n" +
			"The client of ibv_rc_pingpong needs its option -c for that.",
		Example: "  hostA# smcr verbs pingpong -c\n" +
			"  hostB# smcr verbs pingpong -c hostA\n\n" +
			"  hostA# ibv_rc_pingpong -g 1 -c\n" +
			"  hostB# smcr verbs pingpong -c hostA",
		Args: oneHost,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.take(args); err != nil {
				return err
			}
			if o.Size < 1 || o.Size > 1<<30 || o.Iters < 1 || o.RxDepth < 2 || o.RxDepth > 1<<13 {
				return cmdutil.UsageError("size, iterations or receive depth is out of range: see --help")
			}
			return o.run(cmd.Context())
		},
	}
	o.addFlags(cmd, "gid-idx", "g", 1024, "path MTU in `bytes`, the same on both sides")
	fl := cmd.Flags()
	fl.IntVarP(&o.Size, "size", "s", 4096, "`bytes` of a message, 1 to 2^30")
	fl.IntVarP(&o.Iters, "iters", "n", 1000, "`number` of messages in each direction")
	fl.IntVarP(&o.RxDepth, "rx-depth", "r", 500, "`number` of receives posted, 2 to 8192")
	fl.BoolVarP(&o.Check, "check", "c", false, "compare each message with the expected one")
	fl.BoolVarP(&o.events, "events", "e", false, "accepted, without effect: smcr always polls")
	fl.IntVarP(&o.sl, "sl", "l", 0, "accepted, without effect: Ethernet has no service `level`")
	return cmd
}

// A pingPongJSON is a result in JSON.
type pingPongJSON struct {
	Device    string  `json:"device"`
	LocalGID  string  `json:"local_gid"`
	RemoteGID string  `json:"remote_gid"`
	LocalQPN  uint32  `json:"local_qpn"`
	RemoteQPN uint32  `json:"remote_qpn"`
	MTU       int     `json:"mtu"`
	Size      int     `json:"size"`
	Iters     int     `json:"iterations"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	MbitPerS  float64 `json:"mbit_per_second"`
	USecIter  float64 `json:"usec_per_iteration"`
	Checked   int     `json:"checked"`
}

func (o *pingPongOptions) run(ctx context.Context) error {
	tcp, s, err := o.meet(ctx)
	if err != nil {
		return err
	}
	defer o.finish(tcp, s)
	o.MTU, o.Patience = mtuCode(o.mtu), o.patience
	progress := o.IO.Progress("measuring")
	r, err := pingpong.Run(ctx, tcp, o.host != "", s, o.Options)
	progress.Stop()
	if err != nil {
		return err
	}
	o.describe(s, r.MTU, r.Remote.GID)
	sec := max(r.Elapsed.Seconds(), 1e-9)
	j := pingPongJSON{
		s.Name(), r.Local.GID.String(), r.Remote.GID.String(), r.Local.QPN, r.Remote.QPN, r.MTU.Bytes(),
		o.Size, o.Iters, r.Bytes, sec, float64(r.Bytes) * 8 / sec / 1e6, sec * 1e6 / float64(o.Iters), r.Checked,
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, []pingPongJSON{j})
	}
	fmt.Fprintf(o.IO.Out, "%d bytes in %.2f s: %.2f Mbit/s\n", j.Bytes, j.Seconds, j.MbitPerS)
	fmt.Fprintf(o.IO.Out, "%d round trips: %.2f µs each\n", j.Iters, j.USecIter)
	if o.Check {
		fmt.Fprintf(o.IO.Out, "%d messages checked\n", j.Checked)
	}
	return nil
}
