// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/smc"
	"smcr/userstack/broker"
	"smcr/userstack/tcpopt"
)

// TestLocalCorked: bytes that the client's program has written, and that TCP has not sent yet,
// count: the connection is not joined, and they come first.
func TestLocalCorked(t *testing.T) {
	checkLeaks(t)
	b := newLocalBed(t)
	cc, fd, ev := b.connect(b.launcher(os.Geteuid()))
	p := b.end(ev)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("corked, ")); err != nil {
		t.Fatal(err)
	}
	if err := cc.Proceed(); err != nil {
		t.Fatal(err)
	}
	sock := b.accept()
	if n := waiting(sock); n != 0 {
		t.Fatalf("%d bytes were sent: the test shows nothing", n)
	}
	next(t, b.handOver(b.server, sock), broker.EventNotCandidate)
	if _, err := io.WriteString(p, "and what follows"); err != nil {
		t.Fatal(err)
	}
	b.drop(fd) // as launchers do
	q, err := fileConn(sock)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	_ = q.SetReadDeadline(time.Now().Add(testTime))
	got := make([]byte, len("corked, and what follows"))
	if n, err := io.ReadFull(q, got); err != nil || string(got) != "corked, and what follows" {
		t.Errorf("the server reads %q, %v", got[:n], err)
	}
}

// TestLyingNeighbour: a stack of another network namespace says that it has the addresses of this
// host, and those of others. The connections are TCP, nothing is announced on them, and no gate opens.
func TestLyingNeighbour(t *testing.T) {
	b := newOwnBed(t)
	m := &b.s.machine
	m.claim, m.looked = &place.Claim{}, time.Now().Add(time.Hour) // no file is read
	m.others = map[uint64]otherAddrs{77: {addrs: map[netip.Addr]bool{netip.MustParseAddr(ownAddress): true, b.B.Links[0].IPv4: true}}}
	cl := b.launcher(os.Geteuid())
	own := b.listens(b.A, func(fd int) error { return cl.Listen(t.Context(), fd) })
	other := b.listens(b.B, b.prog.MarkListen)
	for to, l := range map[string]int{ownAddress: own, b.B.Addr(): other} {
		fd := b.socket(b.A)
		c, err := cl.Connect(fd, broker.ConnectRequest{Remote: netipPort(to, ownPort)})
		if err != nil {
			t.Fatal(err)
		}
		if ev := next(t, c, broker.EventNotCandidate); ev.Reason != uint32(smc.DiagLocal) {
			t.Errorf("%s: %+v", to, ev)
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4(), Port: ownPort}); err != nil {
			t.Fatal(err)
		}
		server := b.accept(l)
		for who, fd := range map[string]int{"client": fd, "server": server} {
			st, err := b.prog.Peer(fd)
			if g, gerr := b.prog.Gate(fd); g != nil || gerr != nil || err == nil && st != tcpopt.PeerNoSMC {
				t.Errorf("%s, the %s: %v, %v, a gate: %v, %v", to, who, st, err, g != nil, gerr)
			}
		}
	}
}

// TestGateOpeners: gates open at these places alone, none of which follows a message of another
// stack. Each call of OpenHere depends on what the kernel has seen: tcpopt.ErrNotHere.
func TestGateOpeners(t *testing.T) {
	want := map[string]int{
		"userstack/gate.go":                       2, // a DECLINE was read; data came first
		"userstack/internal/programs/programs.go": 1,
		"userstack/service/handler.go":            3, // the client; the server, joined or left to TCP
	}
	got := map[string]int{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(filepath.Join(root, "userstack"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if n := strings.Count(string(b), "ate.Open(") + strings.Count(string(b), ".OpenHere(") + strings.Count(string(b), ".OpenToData("); n > 0 {
			got[name] = n
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("gates open in %v, want %v", got, want)
	}
}

// The steps of the two handlers of a connection that may be joined.
type localStep uint8

const (
	stepConnected localStep = iota // the client's TCP connection is made
	stepPlaced                     // the client has its end
	stepReleased                   // the client has its TCP socket
	stepGone                       // the client has given up
	stepWithdraw                   // the client's handler does not wait any more
	stepClaim                      // the server's launcher passes its socket
	stepOther                      // that of another launcher, which does not want pairs
)

var stepNames = [...]string{"connected", "placed", "released", "gone", "withdraw", "claim", "other"}

// TestLocalInterleavings runs the steps of both handlers in each order that can occur. The two sides
// never disagree on who carries the bytes.
func TestLocalInterleavings(t *testing.T) {
	clients := [][]localStep{
		{stepConnected, stepPlaced},
		{stepConnected, stepPlaced, stepWithdraw},
		{stepConnected, stepReleased},
		{stepConnected, stepGone},
		{stepGone},
	}
	servers := [][]localStep{nil, {stepClaim}, {stepClaim, stepClaim}, {stepOther}, {stepOther, stepClaim}, {stepClaim, stepOther}}
	n := 0
	for _, c := range clients {
		for _, s := range servers {
			merge(c, s, nil, func(order []localStep) {
				// A socket can be passed after the connection is made: its client may not know yet.
				n++
				if err := localOrder(t, order); err != nil {
					t.Errorf("%s: %v", stepText(order), err)
				}
			})
		}
	}
	if n < 60 {
		t.Errorf("%d orders", n)
	}
}

// merge calls f with each order of the steps of two sequences.
func merge(a, b, before []localStep, f func([]localStep)) {
	if len(a) == 0 && len(b) == 0 {
		f(slices.Clone(before))
		return
	}
	if len(a) > 0 {
		merge(a[1:], b, append(slices.Clone(before), a[0]), f)
	}
	if len(b) > 0 {
		merge(a, b[1:], append(slices.Clone(before), b[0]), f)
	}
}

func stepText(order []localStep) string {
	var names []string
	for _, s := range order {
		names = append(names, stepNames[s])
	}
	return strings.Join(names, ", ")
}

// localOrder runs steps on a table with one connection, whose TCP sockets are real. The kernel has
// made the connection before the first step, but the handler of the client may not know.
func localOrder(t *testing.T, order []localStep) error {
	conn, peer := tcpPair(t)
	defer conn.Close()
	defer peer.Close()
	cf, err := conn.File()
	if err != nil {
		return err
	}
	sf, err := peer.File()
	if err != nil {
		return err
	}
	defer sf.Close()
	sock := broker.NewDescriptor(dupFD(t, int(cf.Fd())))
	_ = cf.Close()
	defer sock.Close()
	p, q, _, err := localPair()
	if err != nil {
		return err
	}
	table := &localTable{}
	addr := socketName(t, int(sf.Fd()))
	f := table.newLocalConn(nil, sock, addr.Port(), p, q, true)
	f.held = &holding{o: &table.holder, over: true, used: make(chan struct{})}
	table.add(f)
	joined, withdrawn, left := 0, false, false // the server has its end; the client uses TCP; the server was told TCP
	for _, s := range order {
		switch s {
		case stepPlaced:
			table.finish(f, outcomeLocal)
		case stepReleased:
			table.finish(f, outcomeTCP)
		case stepGone:
			table.finish(f, outcomeClosed)
		case stepWithdraw:
			withdrawn = table.withdraw(f)
		case stepClaim, stepOther:
			got, err := table.claim(int(sf.Fd()), &broker.Launcher{Local: s == stepClaim})
			switch {
			case got != nil && got != f, got != nil && err != nil:
				return fmt.Errorf("claim: %v, %v", got, err)
			case got != nil:
				joined++
			case err != nil:
				left = true
			}
			if s == stepOther && got != nil {
				return errors.New("a launcher that does not want pairs has got one")
			}
		}
	}
	switch result := table.outcome(f); {
	case joined > 1:
		return errors.New("joined twice")
	case joined > 0 && withdrawn:
		return errors.New("the server has its end, and the client uses TCP")
	case joined > 0 && left && !slices.Contains(order, stepOther):
		return errors.New("the server has its end, and was told to use TCP")
	case joined > 0 && !table.claimed(f):
		return errors.New("joined, and not claimed")
	case joined == 0 && table.claimed(f):
		return errors.New("claimed, and not joined")
	case left && joined == 0 && !withdrawn && result == outcomeLocal && slices.Contains(order, stepWithdraw):
		return errors.New("the server uses TCP, and the client waits for it")
	}
	// What the handlers do when all is over.
	_ = p.Close()
	_ = q.Close()
	table.mu.Lock()
	defer table.mu.Unlock()
	if len(table.leaving) > 0 && table.result(f) != outcomePending && !slices.Contains(order, stepPlaced) {
		return fmt.Errorf("%d connections are left to be claimed", len(table.leaving))
	}
	return nil
}

// result returns the result of a connection. t.mu is held.
func (t *localTable) result(f *localConn) outcome { return f.result }

func dupFD(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
