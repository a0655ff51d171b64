// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
)

func runOpen(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	return false, nil
}
