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
// difference: then NAME.user-client.txt or NAME.user-server.txt records it.
type behaviour struct {
	name           string
	client, server string
	limit          time.Duration // of a step between two kernels; 0 means the limit of peer
	race           bool          // both sides act at the same time, in any order
	because        string        // why the behaviour of the user-space stack differs
}

// urgentLimit is how long to wait for a sender that hangs after urgent data, when two
// kernels are recorded.
const urgentLimit = 5 * time.Second

// answerLimit is how long a reply to an LLC message, and the end of TCP, may take.
const answerLimit = 10 * time.Second

// Reasons for differences if one side is the user-space stack.
const (
	becauseReset  = "a reset ends TCP below by RST (RFC 7609, 4.8.2), and poll, recv and SO_ERROR tell the program of it as they do with TCP: HUP beside ERR, ECONNRESET in place of the end"
	becauseLate   = "the first data for a peer that has closed makes the connection a reset, as with TCP, where Linux refuses it and goes on"
	becauseOver   = "when both directions have ended nothing is left to be carried: the connection is closed at once, before the program closes its socket"
	becauseLinger = "SO_LINGER with zero is a reset, as with TCP"
	becauseShut   = "after shutdown(SHUT_RD) what the peer sends is thrown away, where Linux still has the program read it"
	becauseUrgent = "two kernels wait for each other; a kernel that sends does not wait with us, and we do not wait for a kernel that is known never to confirm the urgent byte"
)

// moment is the step at which the states of both sides are compared.
const moment = "wait=go"

var behaviours = []behaviour{
	{
		name:   "half-close",
		client: "send=1000 shut=w touch=c wait=go recv=300000 drain close",
		server: "recv=1000 drain touch=s wait=go send=300000 close",
	}, {
		name:   "half-close-server",
		client: "recv=1000 drain touch=c wait=go send=300000 close",
		server: "send=1000 shut=w touch=s wait=go recv=300000 drain close",
	}, {
		name:    "half-close-both",
		client:  "send=1000 shut=w recv=1000 drain touch=c wait=go close",
		server:  "recv=1000 drain send=1000 shut=w touch=s wait=go close",
		race:    true,
		because: becauseOver,
	}, {
		name:    "close",
		client:  "send=10 wait=got close touch=closed",
		server:  "recv=10 touch=got wait=closed pause=300 poll drain send=10 pause=300 send=10 close",
		because: becauseLate,
	}, {
		name:    "close-server",
		client:  "recv=10 touch=got wait=closed pause=300 poll drain send=10 pause=300 send=10 close",
		server:  "send=10 wait=got close touch=closed",
		because: becauseLate,
	}, {
		name:   "close-both",
		client: "send=10 recv=10 touch=c wait=go close",
		server: "send=10 recv=10 touch=s wait=go close",
		race:   true,
	}, {
		name:    "close-unread",
		client:  "send=100 wait=sent pause=300 close touch=closed",
		server:  "recv=100 send=5000 touch=sent wait=closed pause=300 poll send=100 error drain close",
		because: becauseReset,
	}, {
		name:    "close-unread-server",
		client:  "recv=100 send=5000 touch=sent wait=closed pause=300 poll send=100 error drain close",
		server:  "send=100 wait=sent pause=300 close touch=closed",
		because: becauseReset,
	}, {
		name:    "close-unread-after-data",
		client:  "send=100 wait=sent pause=300 close touch=closed",
		server:  "send=5000 touch=sent wait=closed pause=300 poll recv=100 drain send=100 close",
		because: becauseReset,
	}, {
		name:    "close-unread-both",
		client:  "send=5000 touch=c wait=go close",
		server:  "send=5000 touch=s wait=go close",
		race:    true,
		because: becauseReset,
	}, {
		name:    "close-unread-blocked",
		client:  "recv=10 wait=full pause=300 close",
		server:  "send=10 eager=full stream error drain close",
		because: becauseReset,
	}, {
		name:    "linger",
		client:  "send=100 linger0 wait=got close touch=closed",
		server:  "recv=100 touch=got wait=closed pause=300 poll drain send=100 pause=300 send=10 close",
		because: becauseLinger,
	}, {
		name:    "shutdown-read",
		client:  "send=10 shut=r touch=shut wait=sent pause=300 recv=10 poll close touch=closed",
		server:  "recv=10 wait=shut pause=300 send=5000 touch=sent wait=closed pause=300 send=10 drain close",
		because: becauseShut,
	}, {
		name:   "slow-reader",
		client: "send=8000000 shut=w drain close",
		server: "pause=700 slow=1000000 recv=7000000 drain close",
	}, {
		name:    "windows-closed",
		client:  "eager=c wait=s wait=go take=s shut=w drain close",
		server:  "eager=s wait=c wait=go take=c drain shut=w close",
		race:    true,
		because: becauseOver,
	}, {
		name:    "kill",
		client:  "send=10 wait=got kill",
		server:  "recv=10 touch=got drain send=10 pause=300 send=10 close",
		because: becauseLate,
	}, {
		name:    "kill-server",
		client:  "recv=10 touch=got drain send=10 pause=300 send=10 close",
		server:  "send=10 wait=got kill",
		because: becauseLate,
	}, {
		name:    "kill-unread",
		client:  "recv=10 wait=full pause=300 kill",
		server:  "send=10 eager=full stream error close",
		because: becauseReset,
	}, {
		name:    "urgent",
		client:  "send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-nonblocking",
		client:  "send=5 wait=got oob=! touch=oob sendnb=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:   "urgent-inline",
		client: "wait=inline send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server: "inline touch=inline recv=5 touch=got wait=oob pause=200 byte recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-ignored",
		client: "send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server: "recv=5 touch=got wait=oob recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:    "urgent-mark",
		client:  "send=5 wait=got oob=! touch=oob pause=200 send=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri mark=1 recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-first",
		client:  "wait=ready oob=! touch=oob send=5 shut=w drain close",
		server:  "touch=ready wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:   "urgent-taken-first",
		client: "send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "wait=oob pri recvoob recv=10 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-behind-read",
		client: "send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "wait=oob pause=200 recv=10 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-while-reading",
		client: "send=5 wait=got pause=200 oob=! pause=300 send=5 shut=w drain close",
		server: "recv=5 touch=got recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-inline-slow",
		client: "wait=inline send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "inline touch=inline wait=oob pause=200 recv=5 pause=700 byte recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:    "urgent-twice",
		client:  "wait=ready oob=1 touch=oob wait=took oob=2 send=5 shut=w drain close",
		server:  "touch=ready wait=oob pri recvoob touch=took pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-often",
		client:  "send=5 wait=g1 oob=1 touch=o1 send=5 wait=g2 oob=2 touch=o2 send=5 wait=g3 oob=3 touch=o3 send=200000 shut=w drain close",
		server:  "recv=5 touch=g1 wait=o1 pri recvoob recv=5 touch=g2 wait=o2 pri recvoob recv=5 touch=g3 wait=o3 pri recvoob recv=200000 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-wrap",
		client:  "send=65535 wait=got oob=! touch=oob send=70000 shut=w drain close",
		server:  "recv=65535 touch=got wait=oob pri recvoob recv=70000 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-full",
		client:  "eager=full oob=! touch=oob send=5 shut=w drain close",
		server:  "wait=full pause=200 take=full wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	},
}

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
		for line := range strings.Lines(r.Stdout) {
			if line != "listening\n" && !strings.Contains(line, "connections done") {
				fmt.Fprintf(&text, "%s: %s", name, line)
			}
		}
	}
	for _, s := range states {
		fmt.Fprintln(&text, s)
	}
	for _, s := range []*side{client, server} {
		eventually(t, s.backend+": no connection is left", func() bool { return len(active(t, s)) == 0 })
	}
	without := wire.ProdCursorRequest // it depends on pauses
	if !strings.Contains(b.client+b.server, "eager") && !strings.Contains(b.server, "slow") {
		without |= wire.ProdWriterBlocked // it depends on the order
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
			onWire, err := describeFrames(frames, port, b.race, without)
			if err != nil {
				t.Fatal(err)
			}
			return text.String() + onWire
		}
	}
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
