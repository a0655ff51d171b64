// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"
	"smcr/userstack/launch"
)

// version is set by the build.
var version = "unknown"

func main() {
	launch.MaybeChild()
	os.Exit(cli.Program(context.Background(), cmdutil.NewFactory(version), os.Args))
}
