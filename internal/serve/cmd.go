// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/httpserver"
	"smcr/internal/oplog"
	"smcr/internal/typo"
	"smcr/userstack"
	"smcr/userstack/attach"
	"smcr/userstack/engine"
)

// NewCmd returns the command smcr serve.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*Options) error) *cobra.Command {
	o := &Options{Err: f.IO.ErrOut, Takeover: Takeover{Release: f.Version}}
	var users, groups []string
	var level, prepare string
	var reload int
	var runs bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the user-space stack of this network namespace",
		Long: "Serve SMC-R in user space, over software RoCE, to the programs that 'smcr run'\n" +
			"starts in this network namespace, and answer the other smcr commands. A network\n" +
			"namespace has one stack: its programs share their link groups.\n\n" +
			"'smcr run' starts a stack if there is none. Such a stack logs to /run/smcr and\n" +
			"ends after it has been idle for a minute. It removes its log when it ends. If it\n" +
			"dies, the log stays and 'smcr info' shows where it is. If root's 'smcr run' starts\n" +
			"it and there is a user smcr, which the packages make, the stack runs as this user,\n" +
			"and smcr.service takes over from it. A stack that you start\n" +
			"yourself runs until SIGINT or SIGTERM. It then ends its link groups cleanly and\n" +
			"resets the remaining connections.\n\n" +
			"The stack takes the connections of programs at the network devices of the host, by\n" +
			"eBPF programs. If that is not permitted, it logs this once, and programs use TCP;\n" +
			"'smcr info' says why.\n\n" +
			"At start and on SIGHUP, the stack reads " + config.DefaultPath + " if it\n" +
			"exists, or the file of --config, and its drop-in files, FILE.d/*.yaml: see\n" +
			"'smcr apply --help'. 'smcr info' shows which it has read. Devices that are not in\n" +
			"this network namespace are ignored. If one of the files has an error, the stack does\n" +
			"not start; on SIGHUP, it keeps its settings.\n\n" +
			"Changes by commands, such as 'smcr ueid add', last until the machine restarts.\n" +
			"The stack keeps them in a file in /run/smcr. The next stack of this network\n" +
			"namespace applies them on top of the configuration file. If the configuration file\n" +
			"has changed since then, or the stack reads it again on SIGHUP, the configuration\n" +
			"file replaces all of them. To make changes permanent, run\n" +
			"'smcr export > " + config.DefaultPath + "'. If the stack cannot keep a change, the\n" +
			"command that made it says so, and so does 'smcr info'.\n\n" +
			"With --takeover, a new stack takes over from the one that runs, for example to\n" +
			"upgrade smcr. No connection is reset and none is refused meanwhile. Programs use the\n" +
			"new stack for new connections, also those to sockets that listen already. The old\n" +
			"stack keeps its connections and ends after the last one, or after the\n" +
			"--drain-timeout that it was started with, a day by default. 'smcr info' lists such\n" +
			"stacks. There can be 15. A takeover beyond that ends the oldest one, whose connections\n" +
			"are reset. Configuration, changes by commands and\n" +
			"statistics go on. Only root and the user of the old stack may do this. If the old\n" +
			"stack cannot hand over, because its release is too old for example, the new one\n" +
			"says so and ends, and the old one continues. Without a stack that runs,\n" +
			"--takeover changes nothing.\n\n" +
			"--reload is for ExecReload= of a systemd unit, with NotifyAccess=exec. If process PID\n" +
			"runs the installed smcr, it reads its configuration again, as on SIGHUP. Otherwise, a\n" +
			"stack with the flags of that process takes over from it and becomes the main process\n" +
			"of the unit. So 'systemctl reload smcr' upgrades the stack.\n\n" +
			"The stack uses SMC-R version 1 with any peer. It uses version 2, which also works\n" +
			"across routers, with peers that have an enterprise ID in common with it. User-space\n" +
			"stacks have " + userstack.DefaultUEID + " in common, unless the configuration file lists\n" +
			"others or 'smcr ueid del' removes it. A Linux kernel needs one that you add on both\n" +
			"hosts: see 'smcr ueid add'. A Linux kernel over soft-RoCE (rxe) supports version 2\n" +
			"only.\n\n" +
			"With --cgroup, all programs of a part of the cgroup v2 tree use SMC from the start on,\n" +
			"without 'smcr run' and 'smcr attach'. In a container, the stack sees only the cgroup\n" +
			"of this container. For the programs of all containers of its pod, mount the cgroup v2\n" +
			"tree of the host, and name the mount with --pod-cgroup.\n\n" +
			"RoCE version 2 needs UDP port 4791. If the kernel's soft-RoCE or another program\n" +
			"uses the port, the stack logs this once and continues with RoCE version 1. --roce\n" +
			"v1 disables version 2 of both RoCE and SMC-R. With --roce v2, SMC-R version 1 uses\n" +
			"RoCE version 2 too, and the peer must do the same.\n\n" +
			"Connections between two programs of this machine are TCP. For this, the stack writes\n" +
			"the addresses of its network namespace to a file below /run/smcr, and reads those of\n" +
			"the other stacks. With --no-local, programs of two network namespaces use RoCE, to\n" +
			"try SMC-R on one machine.\n\n" +
			"The stack serves every user of the host. With --allow-user and --allow-group, it\n" +
			"serves only these users, the members of these groups, root and its own user; the\n" +
			"programs of others use TCP. Limits for each user ensure that no user can exhaust\n" +
			"the stack for the others. Only the limits of the whole stack apply to root.\n" +
			"Connections beyond a limit stay TCP, other requests fail, and the caller gets the\n" +
			"reason. What one user or one other host causes gets a part of the log: left_out=N\n" +
			"in a message says how many of its kind are missing before it.\n\n" +
			"With --metrics, the stack answers scrapes of Prometheus at http://ADDRESS/metrics, without\n" +
			"authentication or encryption. 'smcr exporter' does the same in a process without any\n" +
			"rights, and for the kernel's stack too.\n\n" +
			"The stack needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and CAP_SYS_ADMIN for its\n" +
			"start. Before it serves, it gives up all capabilities but the first three, and all\n" +
			"system calls that it does not need. It can run\n" +
			"as a user of its own: 'smcr serve --prepare USER', as root, gives this user the\n" +
			"directory of the sockets and ends. All users of the host then trust a stack of\n" +
			"this user. The systemd unit does this.",
		Example: "  smcr serve\n  smcr serve --netdev eth0 --netdev eth1",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prepare != "" {
				return prepareFor(prepare, oplog.New(f.IO.ErrOut, slog.LevelInfo))
			}
			if o.Start.OnDemand {
				if err := closeInherited(readyFD); err != nil {
					return fmt.Errorf("descriptors of the program that has started this process: %w", err)
				}
			}
			if runs {
				return serveRuns(cmd.Context(), o)
			}
			if cmd.Flags().Changed("reload") {
				if reload <= 0 {
					return cmdutil.UsageError("--reload %d: must be the ID of a process", reload)
				}
				return Reload(cmd.Context(), reload)
			}
			if cmd.Flags().Changed("metrics") {
				addr, err := httpserver.ParseAddr(o.Process.Metrics)
				if err != nil {
					return cmdutil.UsageError("--metrics: %v", err)
				}
				o.Process.Metrics = addr
			}
			for _, s := range users {
				id, err := parseUser(s)
				if err != nil {
					return cmdutil.UsageError("--allow-user %q: no such user", s)
				}
				o.Allow.Users = append(o.Allow.Users, id)
			}
			for _, s := range groups {
				id, err := parseGroup(s)
				if err != nil {
					return cmdutil.UsageError("--allow-group %q: no such group", s)
				}
				o.Allow.Groups = append(o.Allow.Groups, id)
			}
			if o.Cgroup.Dir != "" && o.Cgroup.PodTree != "" {
				return cmdutil.UsageError("--cgroup and --pod-cgroup: choose one")
			}
			if o.GroupIdle <= 0 {
				return cmdutil.UsageError("--group-idle %v: must be more than 0", o.GroupIdle)
			}
			if o.StallTime < time.Second || o.StallTime > 5*time.Minute {
				return cmdutil.UsageError("--stall-time %v: must be 1s to 5m", o.StallTime)
			}
			if l := &o.Limits; l.Memory < -1 || l.UserMemory < -1 || l.Conns < 0 || l.UserConns < 0 || l.Groups < -1 {
				return cmdutil.UsageError("--max-memory %d, --user-memory %d, --max-linkgroups %d: must be at least -1; --max-connections %d, --user-connections %d: must be at least 0", l.Memory, l.UserMemory, l.Groups, l.Conns, l.UserConns)
			}
			if o.UserFDs < 0 || o.UserRuns <= 0 {
				return cmdutil.UsageError("--user-fds %d, --user-sessions %d: --user-fds must be at least 0 and --user-sessions at least 1", o.UserFDs, o.UserRuns)
			}
			if err := o.LogLevel.UnmarshalText([]byte(level)); err != nil {
				return cmdutil.UsageError("--log-level %q: %s", level, typo.Meant(level, []string{"debug", "info", "warn", "error"}, "must be debug, info, warn or error"))
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
	fl.StringVar(&o.Config, "config", "", "read this configuration `file` and its drop-in files (default "+config.DefaultPath+", if it exists)")
	fl.StringArrayVar(&o.NetDevs, "netdev", nil, "use only this `netdev` for RoCE; may be repeated (default: all)")
	fl.StringVar(&o.Cgroup.Dir, "cgroup", "", "have the programs below this `directory` of a cgroup v2 tree use SMC from the start on (default: only those of 'smcr run', 'smcr attach' and the configuration)")
	fl.StringVar(&o.Cgroup.PodTree, "pod-cgroup", "", "have the programs of the pod of this container use SMC from the start on; `directory` is where the cgroup v2 tree of the host is mounted")
	fl.StringVar(&o.RoCE, "roce", "both", "RoCE `version` on the wire: v1, v2 or both")
	fl.IntVar(&o.RecvBuf, "rcvbuf", defaultBuf, "least size of receive buffers (RMB elements) in `bytes`, at most 524288")
	fl.IntVar(&o.SendBuf, "sndbuf", defaultBuf, "size of send buffers in `bytes`")
	fl.IntVar(&o.MaxLinks, "max-links", 2, "maximum number of links in a link group, 2 to 8; Linux peers accept 2")
	fl.BoolVar(&o.EyeCatcher, "eye-catcher", false, "start RMB elements with the eyecatcher of RFC 7609; Linux peers refuse it")
	fl.DurationVar(&o.IdleTimeout, "idle-timeout", 0, "end after this `time` without programs and connections; 0 means never")
	fl.BoolVar(&o.NoDefaultEID, "no-default-eid", false, "start without the enterprise ID "+userstack.DefaultUEID+", which user-space stacks have in common")
	fl.BoolVar(&o.Engine.Off, "no-engine", false, "use goroutines instead of the event loop to move data, for comparison")
	fl.BoolVar(&o.NoLocal, "no-local", false, "use RoCE between network namespaces of this machine")
	fl.IntVar(&o.Engine.Threads, "threads", 0, "`number` of event loops, among which link groups are spread; 0 means one for each two processors")
	fl.DurationVar(&o.Engine.Spin, "spin", engine.DefaultSpin, "look for more work for this `time` before the event loop sleeps; 0 means not at all")
	fl.DurationVar(&o.GroupIdle, "group-idle", 10*time.Minute, "end a link group after this `time` without connections")
	fl.DurationVar(&o.StallTime, "stall-time", userstack.DefaultStallTime, "wait at least this `time` for a peer that stands still until its connections end, 1s to 5m")
	fl.IntVar(&o.UserFDs, "user-fds", 0, "maximum number of `descriptors` of the stack for each user except root, 4 per connection; 0 means a share of the limit of open files")
	fl.IntVar(&o.UserRuns, "user-sessions", attach.DefaultMaxRuns, "maximum `number` of programs under 'smcr run' at a time for each user except root")
	fl.Int64Var(&o.Limits.Memory, "max-memory", 0, "maximum memory for the buffers of all connections in `bytes`; 0 means half of the machine's, -1 no limit")
	fl.Int64Var(&o.Limits.UserMemory, "user-memory", 0, "maximum memory for the buffers of the connections of each user except root in `bytes`; 0 means half of --max-memory, -1 no limit")
	fl.IntVar(&o.Limits.Conns, "max-connections", 0, "maximum `number` of connections; 0 means as many as --max-memory allows")
	fl.IntVar(&o.Limits.UserConns, "user-connections", 0, "maximum `number` of connections of each user except root; 0 means as many as --user-memory allows")
	fl.IntVar(&o.Limits.Groups, "max-linkgroups", 0, "maximum `number` of link groups; 0 means 4096, -1 no limit")
	fl.StringArrayVar(&users, "allow-user", nil, "let only this `user`, a name or a number, run programs over the stack; may be repeated (default: everyone)")
	fl.StringArrayVar(&groups, "allow-group", nil, "let only members of this `group`, a name or a number, run programs over the stack; may be repeated (default: everyone)")
	fl.StringVar(&level, "log-level", "info", "lowest `level` to log: debug, info, warn or error")
	fl.StringVar(&o.Process.Metrics, "metrics", "", "answer scrapes of Prometheus at this `address`, such as 127.0.0.1:9791; a missing host means 127.0.0.1 (default: no metrics)")
	fl.BoolVar(&o.Process.NoFilter, "no-syscall-filter", false, "do not limit the system calls of the stack (by seccomp)")
	fl.StringVar(&prepare, "prepare", "", "start no stack: give the directory of the sockets to this `user`, as whom the stack will run, and end")
	fl.BoolVar(&o.Takeover.From, "takeover", false, "take over from the stack that runs, if there is one: it hands over and ends after its last connection")
	fl.DurationVar(&o.Takeover.DrainTimeout, "drain-timeout", defaultDrain, "after another stack has taken over, end after this `time` even if there are connections, which are reset; 0 means never")
	fl.IntVar(&reload, "reload", 0, "have process `PID`, the stack of a systemd unit, read its configuration again, or take over from it if another smcr is installed")
	fl.BoolVar(&o.Start.OnDemand, "on-demand", false, "remove the log at the end (used by smcr run)")
	fl.BoolVar(&o.Start.Report, reportFlag, false, "report the start on descriptor 3 (used by smcr run and --reload)")
	fl.BoolVar(&runs, "runs", false, "start no stack: make cgroups for programs under smcr run, for a stack that is not of root")
	for _, name := range []string{"on-demand", reportFlag, "runs"} {
		if err := fl.MarkHidden(name); err != nil {
			panic(err) // cannot happen: the flag is defined above
		}
	}
	_ = cmd.RegisterFlagCompletionFunc("reload", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("metrics", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("allow-user", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("allow-group", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("prepare", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("netdev", cmdutil.CompleteNetDevs)
	_ = cmd.RegisterFlagCompletionFunc("config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	_ = cmd.RegisterFlagCompletionFunc("roce", cobra.FixedCompletions([]string{"v1", "v2", "both"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
