// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"runtime/debug"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"
	"smcr/internal/run"
)

func main() {
	run.MaybeChild()
	info, _ := debug.ReadBuildInfo()
	os.Exit(cli.Program(context.Background(), cmdutil.NewFactory(version(info)), os.Args))
}
