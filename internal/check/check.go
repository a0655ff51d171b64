// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// defaultTimeout is the time limit of a check. A CLC handshake with a peer that does
// not answer ends after half of it.
const defaultTimeout = 20 * time.Second

type options struct {
	*cmdutil.Factory
	host    string
	port    string // "" if there is none
	format  string
	timeout time.Duration

	env environment
}

// An environment answers the questions that are not for a stack.
type environment interface {
	// Resolve returns the addresses of a host.
	Resolve(ctx context.Context, host string) ([]netip.Addr, error)
	// Port returns the number of a port, which may be given by name.
	Port(ctx context.Context, port string) (uint16, error)
	// Route returns the route to an address.
	Route(remote netip.Addr) (route, error)
	// GIDTypes returns the types of the GIDs of a port, with their names in
	// sysfs. The result is empty for a port that the kernel does not know.
	GIDTypes(ibdev string, port uint8) []string
	// Start starts the user-space stack and returns its control interface.
	Start(ctx context.Context) (nl.Multi, error)
	// Answers reports whether a host answers, and how. It looks for a neighbour
	// on netdev.
	Answers(ctx context.Context, remote netip.Addr, netdev string) (how string, ok bool)
	// Probe connects to remote through a stack and closes the connection.
	Probe(ctx context.Context, b nl.Backend, remote netip.AddrPort) (outcome, error)
}

// NewCmd returns the command smcr check.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, system{}, nil) }

func newCmd(f *cmdutil.Factory, env environment, runF func(*options) error) *cobra.Command {
	opts := &options{Factory: f, env: env}
	cmd := &cobra.Command{
		Use:   "check HOST[:PORT]",
		Short: "Check whether SMC-R can reach a peer",
		Long: "Check step by step whether SMC-R can reach a peer, and say what to do if it\n" +
			"cannot. The steps cover the stack, the route and its network device, the pnetid,\n" +
			"the RoCE device and its port, and the enterprise IDs. With a port, they also cover\n" +
			"the TCP connection, the SMC option in its handshake, and the CLC handshake with\n" +
			"the reason if a side declines. Without a port, smcr checks whether the host\n" +
			"answers at all: to neighbour discovery (ARP), an ICMP echo request or TCP. It does\n" +
			"not ask then whether the peer uses SMC-R. Rights and features of the kernel that the\n" +
			"stack lacks are named, each with what to do.\n\n" +
			"With a port, smcr opens a connection to the server there and closes it without\n" +
			"sending data. The server itself must use SMC-R: for example, a program under\n" +
			"'smcr run' on the peer.\n\n" +
			"smcr checks every stack of this network namespace. If there is none, it starts\n" +
			"the user-space stack, as 'smcr run' does.\n\n" +
			"Exit status: 0 if a stack can reach the peer, 1 if none can or the host does not\n" +
			"answer.",
		Example: "  smcr check 10.1.0.2:8080\n  smcr check server.example.com -o json",
		Args:    cmdutil.OneArg("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.host, opts.port, err = split(args[0]); err != nil {
				return err
			}
			if opts.timeout <= 0 {
				return cmdutil.UsageError("--timeout %v: the time must be positive", opts.timeout)
			}
			if runF != nil {
				return runF(opts)
			}
			return checkRun(cmd.Context(), opts)
		},
		ValidArgsFunction: f.CompletePeers(),
	}
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	cmd.Flags().DurationVar(&opts.timeout, "timeout", defaultTimeout, "give up after this `time`")
	_ = cmd.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions)
	return cmd
}

// split splits an argument into host and port. An IPv6 address with a port needs
// brackets.
func split(arg string) (host, port string, err error) {
	bare := arg
	if in, ok := strings.CutPrefix(arg, "["); ok {
		bare = strings.TrimSuffix(in, "]")
		if bare == in {
			bare = "" // not an address
		}
	}
	if _, err := netip.ParseAddr(bare); err == nil {
		return bare, "", nil
	}
	if !strings.Contains(arg, ":") {
		if arg == "" {
			return "", "", cmdutil.UsageError("the host name is empty")
		}
		return arg, "", nil
	}
	host, port, err = net.SplitHostPort(arg)
	if err != nil || host == "" || port == "" {
		return "", "", cmdutil.UsageError("%q is not HOST, HOST:PORT or [IPV6-ADDRESS]:PORT", arg)
	}
	return host, port, nil
}

// A reportJSON is the result for one stack in JSON.
type reportJSON struct {
	Stack  string `json:"stack"`
	Host   string `json:"host"`
	Remote string `json:"remote,omitempty"`
	OK     bool   `json:"ok"`
	Steps  []Step `json:"steps"`
}

func checkRun(ctx context.Context, opts *options) error {
	ctx, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	progress := opts.IO.Progress("checking " + opts.host + ": name")
	defer progress.Stop()
	var port uint16
	if opts.port != "" {
		var err error
		if port, err = opts.env.Port(ctx, opts.port); err != nil {
			return cmdutil.UsageError("no port %q", opts.port)
		}
	}
	addrs, err := opts.env.Resolve(ctx, opts.host)
	if err != nil || len(addrs) == 0 {
		return failed(opts, []reportJSON{{Host: opts.host, Steps: []Step{{
			Name: "name", Result: Failed, Text: fmt.Sprintf("%s has no address: %v", opts.host, err), Reason: "name-unknown",
			Advice: "use the address, or see 'getent hosts " + printable.Line(opts.host) + "'",
		}}}})
	}
	m, err := stacks(ctx, opts)
	if err != nil {
		return err
	}
	defer m.Close()
	var reports []reportJSON
	for _, b := range m {
		c := checker{progress: progress, env: opts.env, host: opts.host, netdev: opts.NetDev, addrs: addrs, port: port, hasPort: opts.port != ""}
		c.run(ctx, b)
		r := reportJSON{Stack: b.Name, Host: opts.host, OK: c.ok(), Steps: c.steps}
		if c.remote.IsValid() {
			r.Remote = c.remote.String()
		}
		reports = append(reports, r)
	}
	return failed(opts, reports)
}

// stacks connects to the stacks to check. If there is none, and --backend names none,
// it starts one.
func stacks(ctx context.Context, opts *options) (nl.Multi, error) {
	m, err := opts.Dial(ctx, opts.Backend)
	if cmdutil.ExitCode(err) == cmdutil.ExitNoBackend && (opts.Backend == "auto" || opts.Backend == "user") {
		opts.IO.Waiting("starting the user-space stack")
		return opts.env.Start(ctx)
	}
	return m, err
}

// failed prints the reports and returns the error for a check that failed with every
// stack.
func failed(opts *options, reports []reportJSON) error {
	if err := show(opts, reports); err != nil {
		return err
	}
	for _, r := range reports {
		if r.OK {
			return nil
		}
	}
	return &cmdutil.StatusError{Code: cmdutil.ExitError}
}

func show(opts *options, reports []reportJSON) error {
	opts.IO.Printing()
	if opts.format == cmdutil.FormatJSON {
		return output.JSON(opts.IO.Out, reports)
	}
	var b strings.Builder
	for i, r := range reports {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(reports) > 1 {
			printable.Fprintf(&b, "Stack: %s\n", r.Stack)
		}
		for _, s := range r.Steps {
			b.WriteString(opts.IO.Paint(s.Result.color(), fmt.Sprintf("%-7s", s.Result)))
			printable.Fprintf(&b, "  %-6s  %s\n", s.Name, s.Text)
			for advice := range strings.Lines(s.Advice) {
				printable.Fprintf(&b, "%-7s  %-6s  -> %s\n", "", "", strings.TrimSpace(advice))
			}
			if s.Reason != "" {
				printable.Fprintf(&b, "%-7s  %-6s     see 'smcr explain %s'\n", "", "", s.Reason)
			}
		}
	}
	_, err := io.WriteString(opts.IO.Out, b.String())
	return err
}
