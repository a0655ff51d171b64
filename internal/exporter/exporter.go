// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os/signal"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/confine"
	"smcr/internal/httpserver"
	"smcr/internal/metrics"
	"smcr/internal/oplog"
	"smcr/internal/page"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// DefaultAddr is where the exporter listens by default.
const DefaultAddr = "127.0.0.1:9791"

// NewCmd returns the command smcr exporter.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	addr := DefaultAddr
	cmd := &cobra.Command{
		Use:   "exporter",
		Short: "Show the SMC stacks to Prometheus",
		Long: "Answer scrapes of Prometheus at http://" + DefaultAddr + "/metrics, and show a page to\n" +
			"browsers at http://" + DefaultAddr + "/, or at the address of\n" +
			"--listen, until SIGINT or SIGTERM. A scrape asks all SMC stacks that there are at\n" +
			"that time in this network namespace, the kernel's and the user-space stack, or the\n" +
			"one of --backend. docs/monitoring.md lists the metrics.\n\n" +
			"There is no authentication and no encryption, so the default is an address that\n" +
			"only this machine reaches. With another one, such as 0.0.0.0:9791, a firewall\n" +
			"should let only the Prometheus server in.\n\n" +
			"The exporter needs no rights, and gives up those that it has. Without it,\n" +
			"'smcr serve --metrics 127.0.0.1:9791' shows the user-space stack.",
		Example: "  smcr exporter\n  smcr --backend kernel exporter --listen 10.1.0.5:9791",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := httpserver.ParseAddr(addr)
			if err != nil {
				return cmdutil.UsageError("--listen: %v", err)
			}
			if err := valid(f.Backend); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			log := oplog.New(f.IO.ErrOut, slog.LevelInfo)
			defer oplog.Flush(log)
			shown := func(ctx context.Context) (nl.Multi, error) { return f.Dial(ctx, f.Backend) }
			return run(ctx, at, map[string]http.Handler{
				"GET /metrics": metrics.Handler(source(f), log),
				"/":            page.New(page.Config{Dial: shown, Address: at, Version: f.Version}),
			}, log)
		},
	}
	cmd.Flags().StringVar(&addr, "listen", addr, "`address` to listen on; a missing host means 127.0.0.1")
	_ = cmd.RegisterFlagCompletionFunc("listen", cobra.NoFileCompletions)
	return cmd
}

// valid returns an error for a backend that no stack can have, which would otherwise look like
// a stack that does not answer.
func valid(backend string) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing is asked
	m, err := cmdutil.Dial(ctx, backend)
	if err == nil {
		return m.Close()
	}
	if errors.Is(err, cmdutil.ErrUsage) {
		return err
	}
	return nil
}

// run answers requests until ctx ends.
func run(ctx context.Context, addr string, handlers map[string]http.Handler, log *slog.Logger) error {
	l, err := httpserver.Listen(ctx, addr)
	if err != nil {
		return err
	}
	if err := confine.KeepOnly(0); err != nil && !errors.Is(err, confine.ErrThreads) {
		log.Warn("the exporter keeps rights that it does not need", "err", err)
	}
	log.Info("exporting", "url", "http://"+l.Addr().String()+"/metrics")
	return httpserver.Serve(ctx, l, handlers, log)
}

// source returns the stacks that --backend names, as they are at each scrape.
func source(f *cmdutil.Factory) metrics.Source {
	return func(ctx context.Context) (stacks []metrics.Stack) {
		names, all := []string{f.Backend}, f.Backend == "auto"
		if all {
			// One after the other, because one that cannot be asked must not hide the other.
			names = []string{"kernel", "user"}
		}
		for _, name := range names {
			m, err := f.Dial(ctx, name)
			if err != nil && !(all && errors.Is(err, nl.ErrNoBackend)) {
				stacks = append(stacks, metrics.Stack{Name: name, Err: err})
			}
			stacks = add(stacks, m)
		}
		if f.Ending == nil || !all && f.Backend != "user" {
			return stacks
		}
		m, err := f.Ending(ctx)
		if err != nil {
			return append(stacks, metrics.Stack{Name: "ending", Err: err})
		}
		return add(stacks, m)
	}
}

// add appends stacks that were reached.
func add(stacks []metrics.Stack, m nl.Multi) []metrics.Stack {
	for _, b := range m {
		stacks = append(stacks, metrics.Stack{Name: b.Name, Control: b.Control})
	}
	return stacks
}
