// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/engine"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr serve.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*Options) error) *cobra.Command {
	o := &Options{Err: f.IO.ErrOut}
	var assume []string
	var level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the user-space stack of this network namespace",
		Long: "Serve SMC-R in user space, over software RoCE, to the programs that 'smcr run'\n" +
			"starts in this network namespace, and answer the other smcr commands. There is\n" +
			"one stack in a network namespace: its programs share their link groups.\n\n" +
			"'smcr run' starts it when there is none; such a stack ends when it was idle for\n" +
			"a minute, and logs to /run/smcr. The log goes with it; if it dies the log stays,\n" +
			"and 'smcr info' says where. Started by hand it serves until SIGINT or SIGTERM,\n" +
			"which end its link groups in order and reset the connections left.\n\n" +
			"Where eBPF is not permitted, SMC cannot be announced in the TCP handshake. The\n" +
			"stack says so once and then uses SMC-R only toward the peers of --assume-smc;\n" +
			"these must have it configured likewise.\n\n" +
			"At the start, and again on SIGHUP, it reads " + config.DefaultPath + " if there is\n" +
			"one, or the file of --config; 'smcr apply' describes it. Devices that are not in\n" +
			"this network namespace are left out. A file with an error keeps the stack from\n" +
			"starting; on SIGHUP it changes nothing.\n\n" +
			"What commands change, such as 'smcr ueid add', lasts until the machine starts\n" +
			"anew: it is kept in a file below /run/smcr and added to what the configuration\n" +
			"file says when the next stack of this network namespace starts. A configuration\n" +
			"file that has changed since, or is read again on SIGHUP, replaces all. For good:\n" +
			"'smcr export > " + config.DefaultPath + "'. Where nothing can be kept, each change\n" +
			"says so, and 'smcr info' too.\n\n" +
			"SMC-R version 1 is spoken to everybody. Version 2, which works through routers\n" +
			"too, is spoken with the peers that have an enterprise ID in common with this\n" +
			"stack, see 'smcr ueid add'. A Linux kernel over soft-RoCE (rxe) speaks version 2\n" +
			"only.\n\n" +
			"RoCE version 2 needs UDP port 4791. Where the kernel's soft-RoCE or another\n" +
			"program has it, the stack says so once and goes on with version 1. With --roce v1\n" +
			"there is no version 2 of either; with --roce v2 version 1 of SMC-R goes over RoCE\n" +
			"version 2 as well, which the peer must have likewise.\n\n" +
			"It serves every user of the host, each within limits, so that none of them can\n" +
			"take it from the others; root may have all that the limit of open files leaves.\n" +
			"What is beyond a limit stays TCP, or is refused, and who asked is told so.\n\n" +
			"It needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, or root.",
		Example: "  smcr serve\n  smcr serve --netdev eth0 --netdev eth1\n  smcr serve --assume-smc 10.1.0.0/16",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, s := range assume {
				p, err := parsePrefix(s)
				if err != nil {
					return cmdutil.UsageError("--assume-smc %q is not an address or a prefix such as 10.1.0.0/16", s)
				}
				o.AssumeSMC = append(o.AssumeSMC, p)
			}
			if o.GroupIdle <= 0 {
				return cmdutil.UsageError("--group-idle %v: more than 0", o.GroupIdle)
			}
			if o.UserFDs < 0 || o.UserSessions <= 0 {
				return cmdutil.UsageError("--user-fds %d, --user-sessions %d: no less than 0, and more than 0", o.UserFDs, o.UserSessions)
			}
			if err := o.LogLevel.UnmarshalText([]byte(level)); err != nil {
				return cmdutil.UsageError("--log-level %q: debug, info, warn or error", level)
			}
			if runF != nil {
				return runF(o)
			}
			err := Run(cmd.Context(), o)
			if errors.Is(err, os.ErrPermission) && errors.Is(err, ErrPrivilege) {
				return cmdutil.Say(err, "%s", ErrPrivilege)
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.Config, "config", "", "read this configuration `file` (default "+config.DefaultPath+", if there is one)")
	fl.StringArrayVar(&o.NetDevs, "netdev", nil, "let only this `netdev` carry RoCE; may be repeated (default: all)")
	fl.StringArrayVar(&assume, "assume-smc", nil, "take the peers of this `prefix` to speak SMC where the TCP handshake cannot tell; may be repeated")
	fl.BoolVar(&o.NoOption, "no-tcp-option", false, "do not load the eBPF program that announces SMC in the TCP handshake")
	fl.StringVar(&o.RoCE, "roce", "both", "RoCE `version` on the wire: v1, v2 or both")
	fl.IntVar(&o.RecvBuf, "rcvbuf", userstack.DefaultBuf, "size of receive buffers (RMB elements) in `bytes`, at most 524288")
	fl.IntVar(&o.SendBuf, "sndbuf", userstack.DefaultBuf, "size of send buffers in `bytes`")
	fl.IntVar(&o.MaxLinks, "max-links", 2, "most links of a link group, 2 to 8, for hosts with as many devices; Linux peers take 2")
	fl.BoolVar(&o.EyeCatcher, "eye-catcher", false, "begin RMB elements with the eye catcher of RFC 7609; Linux peers refuse it")
	fl.DurationVar(&o.IdleTimeout, "idle-timeout", 0, "end after this `time` without programs and connections; 0 is never")
	fl.BoolVar(&o.NoEngine, "no-engine", false, "serve each socket by goroutines instead of one event loop, for comparison")
	fl.DurationVar(&o.Spin, "spin", engine.DefaultSpin, "after activity look for more for this `time` before sleeping; 0 is not at all")
	fl.DurationVar(&o.GroupIdle, "group-idle", 10*time.Minute, "end a link group after this `time` without connections")
	fl.IntVar(&o.UserFDs, "user-fds", 0, "most `descriptors` that one user other than root may take of this process, 4 for each connection; 0 is a part of the limit of open files")
	fl.IntVar(&o.UserSessions, "user-sessions", broker.DefaultMaxSessions, "most programs, a `number`, that one user other than root may have under 'smcr run' at a time")
	fl.StringVar(&level, "log-level", "info", "log from this `level` on: debug, info, warn, error")
	fl.BoolVar(&o.OnDemand, "on-demand", false, "report the start on descriptor 3 (used by smcr run)")
	if err := fl.MarkHidden("on-demand"); err != nil {
		panic(err) // the flag was defined a line ago
	}
	_ = cmd.RegisterFlagCompletionFunc("netdev", cmdutil.CompleteNetDevs)
	_ = cmd.RegisterFlagCompletionFunc("config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	_ = cmd.RegisterFlagCompletionFunc("roce", cobra.FixedCompletions([]string{"v1", "v2", "both"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// parsePrefix takes a prefix, or an address for the prefix of itself alone.
func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}
