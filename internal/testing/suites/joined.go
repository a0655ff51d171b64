// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/testing/netnstest"
)

// connected is a program with a connection to itself.
const connected = `
import socket
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname())
l.accept()
`

// Refuses reports whether connections stay TCP in the mode [Joined] because of the kernel of
// this machine: the stack must see when programs close their ends, for which many kernels of
// test machines lack what is needed. A suite that runs so would say nothing about the mode.
func (r *Runner) Refuses(ctx context.Context) (bool, error) {
	if !r.Has(Joined) {
		return false, nil
	}
	pair, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		return false, err
	}
	refuses, err := r.refuses(ctx, pair)
	return refuses, errors.Join(err, pair.Close())
}

func (r *Runner) refuses(ctx context.Context, pair *netnstest.Pair) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute*time.Duration(r.slow))
	defer cancel()
	argv := slices.Concat([]string{"run"}, Joined.Flags, []string{"--", "/usr/bin/python3", "-c", connected})
	cmd := pair.A.Command(ctx, r.smcr, argv...)
	out, err := os.CreateTemp(r.dir, "refuses-")
	if err != nil {
		return false, fmt.Errorf("suites: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := pair.A.Start(cmd)
	if err != nil {
		return false, err
	}
	err = p.Wait(2 * time.Minute * time.Duration(r.slow))
	b, errRead := os.ReadFile(out.Name())
	if err := errors.Join(err, errRead); err != nil {
		return false, fmt.Errorf("suites: a program under smcr run --local: %w\n%s", err, b)
	}
	return strings.Contains(string(b), "this-host-closes"), nil
}
