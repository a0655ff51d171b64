// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDockerPrograms: a program under smcr run is the first process of a container of Docker, with its filter of system calls and its capabilities: its
// end is the container's, it gets the signals, and its connections use SMC-R.
func TestDockerPrograms(t *testing.T) {
	d := newDockerHost(t)
	server := d.wireServer(d.B)
	n := 0
	for _, options := range [][]string{
		nil,
		{"--init"},
		{"--read-only"},
		{"--user", "65534:65534", "--read-only", "--init", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"},
		{"--pid", "host", "--cgroupns", "host"},
		{"--security-opt", "seccomp=unconfined", "--cap-add", "NET_ADMIN"},
	} {
		for name, run := range starts() {
			t.Run(strings.Join(options, " ")+"/"+name, func(t *testing.T) {
				d.t = t
				options := append([]string{"--rm", "--network", "host"}, options...)
				status := func(want int, argv ...string) string {
					t.Helper()
					n++
					line := append([]string{"docker"}, d.create(fmt.Sprintf("smcr-test-%d-%d", os.Getpid(), n), options, append(slices.Clone(run), argv...)...)...)
					cmd := d.command(context.Background(), d.A, line...)
					out, err := cmd.CombinedOutput()
					if cmd.ProcessState.ExitCode() != want {
						t.Errorf("%q: %v, want status %d\n%s", argv, err, want, out)
					}
					return string(out)
				}
				status(7, "/bin/sh", "-c", "exit 7")
				if out := status(0, "/usr/bin/python3", "-c", wireClient, d.B.Addr(), "half"); !strings.Contains(out, "right\n") {
					t.Errorf("%s", out)
				} else if slices.Contains(run, "-v") {
					wantSummary(t, out, 1)
				}
				n++
				id := fmt.Sprintf("smcr-test-%d-%d", os.Getpid(), n)
				argv := append([]string{"docker"}, d.create(id, options, append(slices.Clone(run), "/usr/bin/python3", "-c", waitsForSignal)...)...)
				p := d.A.GoCmd(t, d.command(context.Background(), d.A, argv...))
				if err := p.WaitPart("running as ", startTime); err != nil {
					t.Fatal(err, p.Log())
				}
				d.mustDocker("stop", "--time", fmt.Sprint(int(endTime.Seconds())), id)
				if err := p.Wait(endTime); p.Cmd.ProcessState.ExitCode() != 5 || !strings.Contains(p.Log(), "terminated") {
					t.Errorf("%v, want status 5\n%s", err, p.Log())
				}
			})
		}
	}
	d.t = t
	server.Kill()
	d.wantNoRuns()
}
