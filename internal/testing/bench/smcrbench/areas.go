// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"smcr/internal/testing/bench"
)

// profiled are the measurements of the Go API that are profiled.
var profiled = []struct {
	row, what string
	size      string // of a message in bytes
}{{"goapi", "write", "131072"}, {"goapi-roundtrip", "roundtrip", "1"}}

// areas profiles programs with embedded stacks: only these can show which parts of the
// code use the CPU.
func (r *runner) areas(ctx context.Context, result *bench.Result) error {
	for _, p := range profiled {
		var areas []*bench.Area
		err := r.undisturbed(ctx, "profile of "+p.row, func() (err error) {
			areas, err = r.profile(ctx, p.row, p.what, p.size)
			return err
		})
		if err != nil {
			return err
		}
		result.Areas = append(result.Areas, areas...)
	}
	return nil
}

func (r *runner) profile(ctx context.Context, row, what, size string) (areas []*bench.Area, err error) {
	b, err := r.newBed(ctx, bedSpecs["9000-api"])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	file := func(side string) string { return filepath.Join(r.dir, row+"-"+side+".profile") }
	port, err := b.server(ctx, "load", true, func(port int) ([]string, error) {
		return []string{r.load, "-stack", "-profile", file("server"), "server", address(b, port)}, nil
	})
	if err != nil {
		return nil, err
	}
	d := 2 * max(r.time, time.Second) // the profiler takes 100 samples in a second of CPU time
	if _, err := b.client(ctx, true, r.limit(), r.load, "-stack", "-profile", file("client"), "client", address(b, port), what, d.String(), size); err != nil {
		return nil, err
	}
	server := b.servers[serverKey("load", true)]
	if err := server.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	if err := server.Wait(endTime); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, server.Log())
	}
	for _, side := range []string{"server", "client"} {
		out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodefraction=0", "-nodecount=0", file(side)).Output()
		if err != nil {
			return nil, fmt.Errorf("go tool pprof: %w", err)
		}
		shares, err := bench.ParseProfile(out)
		if err != nil {
			return nil, err
		}
		for i, share := range shares {
			areas = append(areas, &bench.Area{Row: row, Side: side, Name: bench.AreaNames[i], Share: bench.Round(share)})
		}
	}
	return areas, nil
}
