// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/guest"
	"smcr/userstack/wire"
)

var (
	updateKernels = flag.Bool("update-kernels", false, "record what two Linux kernels do (TestTwoKernels)")
	updateHere    = flag.Bool("update-here", false, "record what differs when one side is ours (TestBehaviour)")
)

// recorded is the directory with the behaviour of two kernels, and with differences.
const recorded = "testdata/behaviour"

// A behaviour is one connection with the actions of both programs, in steps of program
// peer. The file NAME.txt records the behaviour of two kernels. If one side is the
// user-space stack, the behaviour must be the same, unless there is a reason for a
// difference: then NAME.user-client.txt or NAME.user-server.txt records it. NAME.tcp.txt
// records what both programs see over TCP.
type behaviour struct {
	name           string
	client, server string
	limit          time.Duration   // of a step between two kernels; 0 means the limit of peer
	race           bool            // both sides act at the same time, in any order
	without        wire.StateFlags // flags on the wire that depend on the order of what happens at the same time
	because        string          // why the behaviour of the user-space stack differs

	// unlikeTCP says why a program on our side, "client" or "server", sees something else than over TCP.
	unlikeTCP map[string]string
}

// urgentLimit is how long to wait for a sender that hangs after urgent data, when two
// kernels are recorded.
const urgentLimit = 5 * time.Second

// answerLimit is how long a reply to an LLC message, and the end of TCP, may take.
const answerLimit = 10 * time.Second

// TestBehaviour compares with the behaviour of two kernels: one side is the kernel, the
// other the user-space stack.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	// Each message must be in a frame of its own.
	user.run(t, "ethtool", "-K", "u0", "tx-udp-segmentation", "off")
	messages := newCapture(t, kernel.Guest, "k0")
	messages.start(t)
	for i, role := range []struct {
		name           string
		client, server *side
	}{
		{"user-server", kernel, user},
		{"user-client", user, kernel},
	} {
		t.Run(role.name, func(t *testing.T) {
			for j, b := range behaviours {
				t.Run(b.name, func(t *testing.T) {
					want := b.want(t, role.name)
					got := b.observe(t, role.client, role.server, messages, uint16(6000+100*i+j), 0)
					if got != want && !*updateHere {
						// A busy machine may have been too slow for a pause.
						t.Logf("once again: -recorded +now:\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
						got = b.observe(t, role.client, role.server, messages, uint16(6050+100*i+j), 0)
					}
					b.compare(t, role.name, want, got)
				})
			}
			at := netip.AddrPortFrom(netip.MustParseAddr(role.server.addr), uint16(6090+100*i))
			role.server.start(t, "listening", "serve", at.String())
			role.client.connect(t, "echo", at, "-n", "3")
			for _, s := range []*side{kernel, user} {
				if n := len(query[linkGroup](t, s, "linkgroup", "list")); n != i+1 {
					t.Errorf("%s: %d link groups, want one for each direction so far", s.backend, n)
				}
				if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
					t.Errorf("%s: fallbacks %+v", s.backend, x)
				}
			}
		})
	}
}

// read returns a record, or "" if there is none.
func (b behaviour) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(recorded, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// want returns the record for a role.
func (b behaviour) want(t *testing.T, role string) string {
	t.Helper()
	kernels, ours := b.read(t, b.name+".txt"), b.read(t, b.name+"."+role+".txt")
	switch {
	case kernels == "":
		t.Fatalf("no record of two kernels: go test -run TestTwoKernels/%s -update-kernels", b.name)
	case ours == "":
		return kernels
	case ours == kernels:
		t.Error("here as with two kernels: the record for this role is to be removed")
	case b.because == "":
		t.Error("differs from two kernels without a reason")
	}
	return ours
}

// compare compares with the record, or writes it.
func (b behaviour) compare(t *testing.T, role, want, got string) {
	t.Helper()
	if !*updateHere {
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("-recorded +now:\n%s", diff)
		}
		return
	}
	file := filepath.Join(recorded, b.name+"."+role+".txt")
	var err error
	if got != b.read(t, b.name+".txt") {
		err = os.WriteFile(file, []byte(got), 0o644)
	} else if err = os.Remove(file); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		t.Fatal(err)
	}
}

// observe runs the programs and returns their output, the states and the messages on the
// wire. limit is the limit of each step; 0 means that of peer.
func (b behaviour) observe(t *testing.T, client, server *side, messages *capture, port uint16, limit time.Duration) string {
	t.Helper()
	from := messages.size()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	shared, done := client.exchange(t, server)
	defer done()
	at := netip.AddrPortFrom(netip.MustParseAddr(server.addr), port)
	commands := []*guest.Cmd{server.script(t, "accept", shared, limit, at, b.server)}
	if err := commands[0].WaitStdout(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
	commands = append(commands, client.script(t, "connect", shared, limit, at, b.client))
	var states []string
	if slices.Contains(strings.Fields(b.client), moment) {
		host := filepath.Join(client.Share(), filepath.Base(shared))
		eventually(t, "both programs are where states are looked at", func() bool {
			_, err1 := os.Stat(filepath.Join(host, "c"))
			_, err2 := os.Stat(filepath.Join(host, "s"))
			return err1 == nil && err2 == nil
		})
		// Real time: the last messages of both arrive in it, and nothing says which is the last.
		time.Sleep(500 * time.Millisecond)
		for i, s := range []*side{client, server} {
			states = append(states, fmt.Sprintf("state: %s %s", []string{"client", "server"}[i], stateAt(t, s, port)))
		}
		if err := os.WriteFile(filepath.Join(host, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for i, name := range []string{"server", "client"} {
		r, err := commands[i].Wait(ctx)
		var exit *guest.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Errorf("%s: %v", name, err)
		}
		if r.Stderr != "" {
			t.Logf("%s: %s", name, r.Stderr)
		}
		text.WriteString(saw(name, r.Stdout))
	}
	for _, s := range states {
		fmt.Fprintln(&text, s)
	}
	for _, s := range []*side{client, server} {
		eventually(t, s.backend+": no connection is left", func() bool { return len(active(t, s)) == 0 })
	}
	without := unsure{race: b.race, flags: wire.ProdCursorRequest, state: b.without} // a request for the cursor depends on pauses
	if !strings.Contains(b.client+b.server, "eager") && !strings.Contains(b.server, "slow") {
		without.flags |= wire.ProdWriterBlocked // it depends on the order
	}
	// A kernel closes TCP and sends answers in work queues, which on a busy machine run
	// last.
	for deadline := time.Now().Add(answerLimit); ; {
		frames := messages.since(t, from)
		list := unanswered(frames)
		if late := time.Now().After(deadline); late || list == nil && tcpEnded(frames, port) {
			if list != nil {
				t.Errorf("LLC requests without a reply: %q in %v", list, frames)
			}
			onWire, err := describeFrames(frames, port, without)
			if err != nil {
				t.Fatal(err)
			}
			return text.String() + onWire
		}
	}
}

// saw returns the lines of a program about its steps.
func saw(name, out string) string {
	var text strings.Builder
	for line := range strings.Lines(out) {
		if line != "listening\n" && !strings.Contains(line, "connections done") {
			fmt.Fprintf(&text, "%s: %s", name, line)
		}
	}
	return text.String()
}

// script starts a peer that runs steps. dir is the directory of their files.
func (s *side) script(t *testing.T, command, dir string, limit time.Duration, at netip.AddrPort, steps string) *guest.Cmd {
	t.Helper()
	args := []string{"-dir", dir}
	if limit > 0 {
		args = append(args, "-limit", limit.String())
	}
	argv := s.peerArgs(command, append(append(args, at.String()), strings.Fields(steps)...)...)
	c := s.Command(append(append([]string{}, s.prefix...), argv...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// stateAt returns the name of the state of the connection that has this port.
func stateAt(t *testing.T, s *side, port uint16) string {
	t.Helper()
	list := slices.DeleteFunc(query[connection](t, s, "connection", "list"), func(c connection) bool {
		// Linux lists no state if the TCP connection below has ended in both directions.
		unnamed := c.Local.Port() == 0 && c.State != "INIT"
		return c.State == "LISTEN" || !unnamed && c.Local.Port() != port && c.Remote.Port() != port
	})
	if len(list) != 1 {
		return fmt.Sprintf("none: %+v", list)
	}
	return list[0].State
}

// exchange makes a directory with the same files for the programs of both sides. Between
// two guests, it copies the files.
func (s *side) exchange(t *testing.T, other *side) (name string, done func()) {
	t.Helper()
	dir, err := os.MkdirTemp(s.Share(), "files-")
	if err != nil {
		t.Fatal(err)
	}
	name = filepath.Join(guest.SharePath, filepath.Base(dir))
	if other.Guest == s.Guest {
		return name, func() {}
	}
	twin := filepath.Join(other.Share(), filepath.Base(dir))
	if err := os.Mkdir(twin, 0o755); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, d := range [][2]string{{dir, twin}, {twin, dir}} {
				if err := copyNew(d[0], d[1]); err != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond): // Real time: it looks for new files until it is told to stop.
			}
		}
	}()
	return name, func() {
		close(stop)
		<-ended
	}
}

// copyNew copies the files that the other directory does not have.
func copyNew(from, to string) error {
	list, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".new") {
			continue
		}
		target := filepath.Join(to, e.Name())
		if _, err := os.Stat(target); err == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.WriteFile(target+".new", b, 0o644)
		}
		if err == nil {
			err = os.Rename(target+".new", target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
