// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Build compiles a main package of this module, statically, so that the
// program runs in guests too. The working directory must be within the module.
func Build(ctx context.Context, pkg, file string) error {
	return goCommand(ctx, "build", "-buildvcs=false", "-trimpath", "-o", file, pkg)
}

// BuildTest compiles the tests of a package of this module as Build does. Run
// in a guest, they test what only the guest has.
func BuildTest(ctx context.Context, pkg, file string) error {
	return goCommand(ctx, "test", "-c", "-buildvcs=false", "-o", file, pkg)
}

func goCommand(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("guest: go %s: %w\n%s", args[0], err, out)
	}
	return nil
}
