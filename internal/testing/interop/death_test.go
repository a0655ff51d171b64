// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/userstack/wire"
)

const (
	// kernelTestLink is the time after which the kernel tests an idle link; the default
	// is 30 s.
	kernelTestLink = 3 * time.Second
	// noticeLimit is how long a side may take to notice that the other one does not
	// answer: TEST LINK after 30 s, 2 s for its answer, and time for a busy machine.
	noticeLimit = 50 * time.Second
)

// A session is a connection whose programs wait for its end.
type session struct {
	name     string
	commands map[string]*guest.Cmd // of "client" and "server"
}

// open makes a connection. Both programs wait, or write, until it ends.
func open(t *testing.T, name string, client, server *side, port uint16, clientDoes, serverDoes string) *session {
	t.Helper()
	dir, done := client.exchange(t, server)
	defer done()
	at := netip.AddrPortFrom(netip.MustParseAddr(server.addr), port)
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	x := &session{name: name, commands: map[string]*guest.Cmd{
		"server": server.script(t, "accept", dir, 2*noticeLimit, at, "recv=10 send=10 touch=s "+serverDoes),
	}}
	t.Cleanup(func() {
		for _, c := range x.commands {
			_ = c.Signal(syscall.SIGKILL)
		}
	})
	if err := x.commands["server"].WaitStdout(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
	x.commands["client"] = client.script(t, "connect", dir, 2*noticeLimit, at, "send=10 recv=10 touch=c "+clientDoes)
	host := filepath.Join(client.Share(), filepath.Base(dir))
	eventually(t, name+" is open", func() bool {
		_, err1 := os.Stat(filepath.Join(host, "c"))
		_, err2 := os.Stat(filepath.Join(host, "s"))
		return err1 == nil && err2 == nil
	})
	return x
}

// ended waits for the end of both programs, or of those in who. It logs their output and
// the time.
func (x *session) ended(t *testing.T, since time.Time, who ...string) {
	t.Helper()
	if who == nil {
		who = []string{"client", "server"}
	}
	for _, name := range who {
		ctx, cancel := context.WithTimeout(t.Context(), max(time.Second, time.Until(since.Add(noticeLimit))))
		r, err := x.commands[name].Wait(ctx)
		cancel()
		var exit *guest.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Errorf("%s: %s has not ended after %v: %v", x.name, name, time.Since(since).Round(time.Millisecond), err)
		}
		lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
		t.Logf("%s: %s: %s (%s)", x.name, name, strings.Join(lines[min(len(lines), 4):], ", "),
			strings.ReplaceAll(strings.TrimSpace(r.Stderr), "\n", ", "))
	}
}

// works checks that connections in both directions work.
func works(t *testing.T, kernel, user *side, port uint16) {
	t.Helper()
	for i, p := range [][2]*side{{kernel, user}, {user, kernel}} {
		at := netip.AddrPortFrom(netip.MustParseAddr(p[1].addr), port+uint16(i))
		begin := time.Now()
		stop := p[1].start(t, "listening", "serve", at.String())
		p[0].connect(t, "echo", at, "-n", "2", "-bytes", "200000")
		stop()
		t.Logf("%s to %s works, %v", p[0].backend, p[1].backend, time.Since(begin).Round(time.Millisecond))
	}
}

// groupsGone waits until the sides list no link group.
func groupsGone(t *testing.T, sides ...*side) {
	t.Helper()
	for _, s := range sides {
		eventually(t, s.backend+": no link group is left", func() bool { return len(query[linkGroup](t, s, "linkgroup", "list")) == 0 })
	}
}

// TestEnds ends link groups and stacks that connections use.
func TestEnds(t *testing.T) {
	t.Parallel()
	kernel, user := newBedOf(t, setup{devices: 1, options: []string{"--group-idle", "4s"}})
	kernel.run(t, "sysctl", "-qw", fmt.Sprintf("net.smc.smcr_testlink_time=%d", int(kernelTestLink.Seconds())))
	user.run(t, "ethtool", "-K", "u0", "tx-udp-segmentation", "off") // one message in each frame
	messages := newCapture(t, kernel.Guest, "k0")
	messages.start(t)
	t.Run("Idle", func(t *testing.T) { testIdle(t, kernel, user, messages) })
	t.Run("StackKilled", func(st *testing.T) {
		testStackKilled(st, kernel, user, func() {
			// The stack is needed for the next parts too. It still has its enterprise ID.
			user.serve(t, "--group-idle", "4s")
		})
	})
	t.Run("WireCut", func(t *testing.T) { testWireCut(t, kernel, user) })
}

// testIdle: an idle link group ends with DELETE LINK for all links, which the user-space
// stack sends as server and as client. Then the kernel has no link group.
func testIdle(t *testing.T, kernel, user *side, messages *capture) {
	for i, p := range [][2]*side{{kernel, user}, {user, kernel}} {
		from := messages.size()
		at := netip.AddrPortFrom(netip.MustParseAddr(p[1].addr), uint16(7000+i))
		stop := p[1].start(t, "listening", "serve", at.String())
		p[0].connect(t, "echo", at)
		stop()
		begin := time.Now()
		for _, s := range p {
			if n := len(query[linkGroup](t, s, "linkgroup", "list")); n != 1 {
				t.Errorf("%s: %d link groups, want 1", s.backend, n)
			}
		}
		groupsGone(t, kernel, user)
		t.Logf("%s to %s: gone after %v", p[0].backend, p[1].backend, time.Since(begin).Round(time.Millisecond))
		var ends []string
		for _, f := range messages.since(t, from) {
			if m, ok := f.llc.(wire.DeleteLink); ok {
				ends = append(ends, fmt.Sprintf("%v all %v orderly %v reply %v: %v", f.from, m.All, m.Orderly, m.Reply, m.Reason))
			}
		}
		ours := fmt.Sprintf("%s all true orderly true reply false: %v", userAddr, wire.DeleteLinkProgram)
		if len(ends) == 0 || ends[0] != ours {
			t.Errorf("DELETE LINK messages %q, want first %q", ends, ours)
		}
		t.Logf("%q", ends)
	}
}

// testStackKilled kills the user-space stack. Its programs notice, although no timer of the stack
// runs any more, and the kernel notices by TEST LINK or a failed send. A new stack works at once.
func testStackKilled(t *testing.T, kernel, user *side, again func()) {
	sessions := []*session{
		open(t, "idle, kernel to user", kernel, user, 7010, "drain error", "drain error"),
		open(t, "idle, user to kernel", user, kernel, 7011, "drain error", "drain error"),
		open(t, "kernel writes", kernel, user, 7012, "stream error", "drain error"),
		open(t, "user writes", user, kernel, 7013, "stream error", "drain error"),
	}
	begin := time.Now()
	if err := user.stack.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i, x := range sessions {
		x.ended(t, begin, []string{"server", "client"}[i%2])
	}
	t.Logf("the programs of the stack have noticed after %v", time.Since(begin).Round(time.Millisecond))
	again()
	works(t, kernel, user, 7020)
	t.Logf("a new stack works after %v", time.Since(begin).Round(time.Millisecond))
	for _, x := range sessions {
		x.ended(t, begin)
	}
	groupsGone(t, kernel, user)
	for _, s := range []*side{kernel, user} {
		eventually(t, s.backend+": no connection is left", func() bool { return len(active(t, s)) == 0 })
	}
}

// testWireCut makes the LAN drop all frames, as if the other host had lost its power.
func testWireCut(t *testing.T, kernel, user *side) {
	sessions := []*session{
		open(t, "idle, kernel to user", kernel, user, 7030, "drain error", "drain error"),
		open(t, "idle, user to kernel", user, kernel, 7031, "drain error", "drain error"),
		open(t, "kernel writes", kernel, user, 7032, "stream error", "drain error"),
		open(t, "user writes", user, kernel, 7033, "stream error", "drain error"),
	}
	kernel.run(t, "ip", "link", "set", "pk0", "type", "bridge_slave", "isolated", "on")
	kernel.run(t, "ip", "link", "set", "pu0", "type", "bridge_slave", "isolated", "on")
	begin := time.Now()
	for _, x := range sessions {
		x.ended(t, begin)
	}
	groupsGone(t, kernel, user)
	for _, s := range []*side{kernel, user} {
		if x := stats(t, s).Fallbacks; x.Client != 0 || x.Server != 0 {
			t.Errorf("%s: fallbacks %+v", s.backend, x)
		}
	}
	kernel.run(t, "ip", "link", "set", "pu0", "type", "bridge_slave", "isolated", "off")
	works(t, kernel, user, 7040)
}

// TestKernelDeviceDeleted deletes the device of the kernel while data is sent. The
// command for this may hang in the kernel. The user-space stack ends the connections and
// still works.
func TestKernelDeviceDeleted(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	sessions := []*session{
		open(t, "idle, kernel to user", kernel, user, 7050, "drain error", "drain error"),
		open(t, "user writes", user, kernel, 7051, "stream error", "drain error"),
		open(t, "kernel writes", kernel, user, 7052, "stream error", "drain error"),
	}
	remove := kernel.Command("rdma", "link", "delete", "rxe0")
	if err := remove.Start(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i, x := range sessions {
		x.ended(t, begin, []string{"server", "client"}[i%2])
	}
	groupsGone(t, user)
	eventually(t, "user: no connection is left", func() bool { return len(active(t, user)) == 0 })
	// Real time: what becomes of the command is only logged, and it may hang for ever.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := remove.Wait(ctx); err != nil {
		t.Logf("rdma link delete: %v", err)
	}
	// Connections between two programs of the user-space stack work.
	at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), 7060)
	user.start(t, "listening", "serve", at.String())
	user.connect(t, "echo", at, "-n", "3")
	if list := active(t, user); slices.ContainsFunc(list, func(c connection) bool { return c.Remote.Addr() == netip.MustParseAddr(kernelAddr) }) {
		t.Errorf("connections to the kernel are left: %+v", list)
	}
}
