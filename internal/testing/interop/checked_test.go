// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/faults"
	"smcr/internal/testing/guest"
)

// twoStacks boots a guest in which two hosts run the user-space stack, in two network
// namespaces on one LAN: near on device n0, far on device f0. near has a server of program
// checked under smcr run, on port 7070. checked is the path of the program.
func twoStacks(t *testing.T, name string) (near, far *side, checked string) {
	t.Helper()
	g := guest.New(t, guest.Config{Name: name, Limit: guestLimit})
	b := &bed{Guest: g}
	b.programs(t)
	file, err := guest.Program(t.Context(), "smcr/internal/testing/programs/checked")
	if err != nil {
		t.Fatal(err)
	}
	if checked, err = g.Push(file); err != nil {
		t.Fatal(err)
	}
	near = &side{bed: b, backend: "user", addr: kernelAddr, prefix: []string{"env", "SMCR_HOST_ID=near"}}
	far = &side{bed: b, backend: "user", addr: userAddr, prefix: []string{"nsenter", "--net=/run/netns/" + netns, "env", "SMCR_HOST_ID=far"}}
	if err := errors.Join(g.LoadStack(t.Context()), g.AddVeth(t.Context(), "n0", "f0", netns)); err != nil {
		t.Fatal(err)
	}
	near.run(t, "ip", "addr", "add", kernelAddr+"/24", "dev", "n0")
	far.run(t, "ip", "addr", "add", userAddr+"/24", "dev", "f0")
	for _, s := range []*side{near, far} {
		s.begin(t, s.smcr, "serve")
		eventually(t, "the stack answers", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
			defer cancel()
			_, err := s.try(ctx, s.smcr, "--backend", "user", "info")
			return err == nil
		})
	}
	server := near.begin(t, near.smcr, "run", "--mode", "user", "--no-adapt", "--", checked, "server", near.addr+":7070")
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	if err := server.WaitStdout(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
	return near, far, checked
}

// begin starts a command on a side, which ends with the test.
func (s *side) begin(t *testing.T, argv ...string) *guest.Cmd {
	t.Helper()
	c := s.Command(append(append([]string{}, s.prefix...), argv...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r := s.stop(t, c); t.Failed() {
			t.Logf("%q:\n%s%s", argv, r.Stdout, r.Stderr)
		}
	})
	return c
}

var carriedRE = regexp.MustCompile(`(?m)^smcr: (\d+) connections? over SMC-R, (\d+) over TCP`)

// checkedRow makes a row of what a client of program checked with so many connections under
// smcr run -v wrote.
func checkedRow(r guest.Result, conns int) faults.Row {
	row := faults.Row{Runs: 1, Conns: conns}
	ended := 0
	for line := range strings.Lines(r.Stdout) {
		var c struct {
			Received        int64
			Error           string
			Corrupted, Hung bool
		}
		if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &c) != nil {
			continue
		}
		ended++
		row.Bytes += 2 * c.Received // the server has received as much
		for _, x := range []struct {
			count *int
			holds bool
		}{{&row.Failed, c.Error != ""}, {&row.Corrupted, c.Corrupted}, {&row.Hung, c.Hung}} {
			if x.holds {
				*x.count++
			}
		}
	}
	row.Failed += conns - ended
	if m := carriedRE.FindStringSubmatch(r.Stderr); m != nil {
		row.SMC, _ = strconv.Atoi(m[1])
		row.TCP, _ = strconv.Atoi(m[2])
	}
	return row
}
