// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"smcr/internal/testing/guest"
)

func main() {
	memory := flag.Int("memory", 0, "memory in `MiB`")
	cpus := flag.Int("cpus", 0, "`number` of CPUs")
	smc := flag.Bool("smc", true, "load SMC and soft-RoCE")
	flag.Parse()
	argv := flag.Args()
	if len(argv) == 0 {
		argv = []string{"bash", "-l"}
	}
	err := run(guest.Config{Name: "guest", Memory: *memory, CPUs: *cpus}, *smc, argv)
	var exit *guest.ExitError
	if errors.As(err, &exit) && exit.Reason == "" {
		os.Exit(max(exit.Status, 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(cfg guest.Config, smc bool, argv []string) (err error) {
	restore, err := guest.KeepTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	cfg.Terminal = true
	cfg.Limit = 24 * time.Hour
	ctx := context.Background()
	fmt.Fprint(os.Stderr, "building smcr\r\n")
	smcr, err := guest.Program(ctx, "smcr/cmd/smcr")
	if err != nil {
		return err
	}
	fmt.Fprint(os.Stderr, "booting a guest; the first time the kernel is downloaded (100 MB)\r\n")
	g, err := guest.Boot(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if err := g.Install(smcr); err != nil {
		return err
	}
	if smc {
		if err := g.LoadSMC(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "Linux %s after %.1f s; %s here is %s on the host\r\n", g.Kernel(), g.BootTime().Seconds(), guest.SharePath, g.Share())
	return g.Shell(ctx, argv...)
}
