// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

var updateTCP = flag.Bool("update-tcp", false, "record what programs see over TCP (TestOverTCP)")

// overTCP is the file of what the programs of a behaviour see over TCP.
func (b behaviour) overTCP() string { return b.name + ".tcp.txt" }

// TestAsOverTCP: a program on our side sees what it sees over TCP, whatever the kernel does on the other side, but
// for the reasons in the table. What it sees is in the records that TestBehaviour compares with.
func TestAsOverTCP(t *testing.T) {
	for _, b := range behaviours {
		tcp := b.read(t, b.overTCP())
		if tcp == "" {
			t.Errorf("%s: no record: go test -run TestOverTCP -update-tcp", b.name)
			continue
		}
		for role, program := range map[string]string{"user-client": "client", "user-server": "server"} {
			diff := cmp.Diff(linesOf(tcp, program), linesOf(b.want(t, role), program))
			switch because := b.unlikeTCP[program]; {
			case diff != "" && because == "":
				t.Errorf("%s: the %s sees something else than over TCP: -TCP +here:\n%s", b.name, program, diff)
			case diff == "" && because != "":
				t.Errorf("%s: the %s sees what it sees over TCP: the reason is to be removed", b.name, program)
			}
		}
	}
}

// linesOf returns the lines of one of the programs in a record.
func linesOf(record, program string) (list []string) {
	for line := range strings.Lines(record) {
		if strings.HasPrefix(line, program+": ") {
			list = append(list, line)
		}
	}
	return list
}

// TestOverTCP runs the programs of TestBehaviour over TCP, on two hosts of this machine, and compares with the records.
func TestOverTCP(t *testing.T) {
	t.Parallel()
	hosts := netnstest.New(t, netnstest.Options{})
	program, err := guest.Program(t.Context(), guestPrograms[1])
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && strings.Contains(b.client+b.server, "=full") {
				t.Skip("waits until no buffer has room")
			}
			got := b.runOverTCP(t, hosts, program, 6000+i)
			if *updateTCP {
				if err := os.WriteFile(filepath.Join(recorded, b.overTCP()), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want := b.read(t, b.overTCP())
			if got != want {
				// A busy machine may have been too slow for a pause.
				t.Logf("once again: -recorded +now:\n%s", cmp.Diff(want, got))
				got = b.runOverTCP(t, hosts, program, 6100+i)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-recorded +now:\n%s", diff)
			}
		})
	}
}

// runOverTCP runs the programs and returns what both write.
func (b behaviour) runOverTCP(t *testing.T, hosts *netnstest.Pair, program string, port int) string {
	t.Helper()
	dir := t.TempDir()
	at := netip.AddrPortFrom(netip.MustParseAddr(hosts.B.Addr()), uint16(port)).String()
	start := func(h *netnstest.Host, command, steps string) *netnstest.Process {
		cmd := h.Command(t.Context(), program, append([]string{command, "-dir", dir, at}, strings.Fields(steps)...)...)
		cmd.Stderr = io.Discard // how long steps took
		return h.GoCmd(t, cmd)
	}
	server := start(hosts.B, "accept", b.server)
	if err := server.WaitOutput("listening", commandLimit); err != nil {
		t.Fatal(err)
	}
	client := start(hosts.A, "connect", b.client)
	if slices.Contains(strings.Fields(b.client), moment) {
		for _, name := range []string{"c", "s"} {
			testkind.Eventually(t, "both programs wait", func() (saw any, ok bool) {
				_, err := os.Stat(filepath.Join(dir, name))
				return err, err == nil
			})
		}
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []*netnstest.Process{server, client} {
		var exit *exec.ExitError // of a program that kills itself
		if err := p.Wait(commandLimit); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return saw("server", server.Log()) + saw("client", client.Log())
}
