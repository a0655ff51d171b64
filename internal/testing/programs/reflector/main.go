// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"smcr/internal/testing/reflector"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := reflector.Run(ctx, slog.Default(), func() { fmt.Println("reflecting") }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
