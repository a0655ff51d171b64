// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"runtime/debug"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"
	"smcr/userstack/launch"
)

func main() {
	launch.MaybeChild()
	info, _ := debug.ReadBuildInfo()
	os.Exit(cli.Program(context.Background(), cmdutil.NewFactory(version(info)), os.Args))
}
