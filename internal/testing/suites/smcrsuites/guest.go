// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/suites"
)

const (
	// slowdown is how much longer jobs may take on an emulated processor.
	slowdown = "6"

	// guestLimit is for all suites. The context ends the guest earlier.
	guestLimit = 24 * time.Hour

	guestMemory = 3072 // MiB: its files are there, too
)

// inGuest runs the jobs of the command line args, which NewRunner and Prepare have seen on this
// machine, over TCP and joined in a guest, whose kernel permits what joined connections need.
func inGuest(ctx context.Context, smcr, logs string, args []string) (good bool, err error) {
	const refuses = "this kernel does not let the stack see when programs close their ends, so no connection is joined here"
	if os.Getenv("SMCR_GUEST") != "" {
		return false, errors.New(refuses)
	}
	if err := guest.Available(); err != nil {
		fmt.Printf("\nmode joined is left out: %s, and there is no guest: %v\n", refuses, err)
		return true, nil
	}
	fmt.Printf("\nmode joined, in a guest: %s\n", refuses)
	g, err := guest.Boot(ctx, guest.Config{Name: "suites", Memory: guestMemory, Limit: guestLimit})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	self, err := guest.Program(ctx, "smcr/internal/testing/suites/smcrsuites")
	if err != nil {
		return false, err
	}
	var programs []string
	for _, file := range []string{self, smcr} {
		name, err := g.Push(file)
		if err != nil {
			return false, err
		}
		programs = append(programs, name)
	}
	if r, err := g.Run(ctx, "ip", "link", "set", "lo", "up"); err != nil {
		return false, fmt.Errorf("%w\n%s", err, r.Stderr)
	}
	shared := filepath.Join(g.Share(), "logs")
	defer func() {
		if left := os.CopyFS(filepath.Join(logs, "guest-"+time.Now().Format("20060102-150405")), os.DirFS(shared)); !errors.Is(left, os.ErrNotExist) {
			err = errors.Join(err, left)
		}
	}()
	// Of a flag that is given twice, the last one counts.
	c := g.Command(slices.Concat(programs[:1], args, []string{"-smcr", programs[1], "-logs", filepath.Join(guest.SharePath, "logs"), "-modes", suites.Joined.Name, "-slow", slowdown})...)
	c.Env = []string{"SMCR_GUEST=1", "HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH")}
	c.Output = os.Stdout
	r, err := c.Run(ctx)
	if exit, ok := errors.AsType[*guest.ExitError](err); ok && exit.Status == 1 && exit.Reason == "" {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w\n%s", err, r.Stderr)
	}
	return true, nil
}
