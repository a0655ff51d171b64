// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

func TestNeighbourWire(t *testing.T) {
	want := neighbourMessage{
		op: opOffer, machine: [32]byte{1, 31: 2}, netns: 77, uid: 1000, seqs: tcpSeqs{1, 0xffffffff},
		name: tuple{netip.MustParseAddrPort("192.0.2.1:8080"), netip.MustParseAddrPort("[2001:db8::1]:80")},
	}
	b := want.encode()
	got, err := decodeNeighbour(b)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(neighbourMessage{}, tcpSeqs{}, tuple{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":  func(b []byte) []byte { return b[:len(b)-1] },
		"long":   func(b []byte) []byte { return append(b, 0) },
		"empty":  func([]byte) []byte { return nil },
		"magic":  func(b []byte) []byte { b[0]++; return b },
		"op 0":   func(b []byte) []byte { b[5] = 0; return b },
		"op":     func(b []byte) []byte { b[5] = byte(opEnd); return b },
		"family": func(b []byte) []byte { b[80] = 5; return b },
	} {
		if m, err := decodeNeighbour(change(want.encode())); !errors.Is(err, errNeighbour) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	// A message of another release may have any length.
	for _, n := range []int{5, neighbourLen, 7 * neighbourLen} {
		b := append([]byte("SMCL\x02"), make([]byte, n-5)...)
		if m, err := decodeNeighbour(b); !errors.Is(err, errNeighbourVersion) {
			t.Errorf("%d bytes of another release: %+v, %v", n, m, err)
		}
	}
}

func FuzzNeighbour(f *testing.F) {
	f.Add((&neighbourMessage{op: opOwns}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeNeighbour(b)
		if err != nil {
			return
		}
		again, err := decodeNeighbour(m.encode())
		if err != nil || again != m {
			t.Errorf("%+v becomes %+v, %v", m, again, err)
		}
	})
}

// talk has the service answer another stack, and returns the other stack's end.
func (b *localBed) talk() *net.UnixConn {
	b.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		c, err := fileConn(fd)
		if err != nil {
			b.t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	b.wg.Go(func() {
		defer ends[0].Close()
		b.s.neighbours.answer(b.ctx, ends[0])
	})
	b.t.Cleanup(func() { _ = ends[1].Close() })
	return ends[1]
}

// neighbourBed is a localBed with another stack of its machine, which is the test.
func neighbourBed(t *testing.T) *localBed {
	b := newLocalBed(t, func(s *Service) {
		s.neighbours.machine = [32]byte{1}
		s.neighbours.locator = s.programs.Locator()
	})
	b.net.foreign.Store(true) // its clients are not of this network namespace
	return b
}

// client is a program of the other stack that has connected, and what that offers.
func (b *localBed) client() (m *neighbourMessage, p, q *broker.Descriptor) {
	b.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keep(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: b.addr.Addr().As4(), Port: int(b.addr.Port())}); err != nil {
		b.t.Fatal(err)
	}
	seqs, err := sequences(fd)
	if errors.Is(err, unix.EPERM) {
		b.t.Skip(err)
	} else if err != nil {
		b.t.Fatal(err)
	}
	p, q, sealed, err := localPair()
	if err != nil || !sealed {
		b.t.Skip("no SO_PASSRIGHTS", err)
	}
	b.t.Cleanup(func() { _ = p.Close(); _ = q.Close() })
	return &neighbourMessage{
		op: opOffer, machine: [32]byte{1}, netns: 5, uid: uint32(os.Geteuid()), seqs: seqs,
		name: tuple{socketName(b.t, fd), b.addr},
	}, p, q
}

// asks sends a message and wants an answer.
func (b *localBed) asks(m *neighbourMessage, want byte, ends ...*broker.Descriptor) *net.UnixConn {
	b.t.Helper()
	u := b.talk()
	if err := sendNeighbour(u, m, ends...); err != nil {
		b.t.Fatal(err)
	}
	if word, err := receiveWord(u, testTime); err != nil || word != want {
		b.t.Fatalf("answer %q, %v, want %q", word, err, want)
	}
	return u
}

// TestNeighbour: a program of another stack of the machine is joined to one of this
// stack, which tells when its end is taken.
func TestNeighbour(t *testing.T) {
	checkLeaks(t)
	b := neighbourBed(t)
	b.asks(&neighbourMessage{op: opOwns, machine: [32]byte{1}, name: tuple{server: netip.MustParseAddrPort("10.0.0.1:0")}}, wordYes)
	m, p, q := b.client()
	u := b.asks(m, wordYes, p, q)
	if err := sendWord(u, wordLocal); err != nil {
		t.Fatal(err)
	}
	end, err := fileConn(p.Take())
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	_ = q.Close()
	sc := b.handOver(b.server, b.accept())
	other := b.end(next(t, sc, broker.EventLocal))
	if word, err := receiveWord(u, testTime); err != nil || word != wordTaken {
		t.Errorf("word %q, %v", word, err)
	}
	exchange(t, end, other)
	_ = end.Close()
	next(t, sc, broker.EventClosed)
}

// TestNeighbourRefuses: a stack answers no to what is not of this machine, is no
// connection of it, or to a port on which no program has listened.
func TestNeighbourRefuses(t *testing.T) {
	checkLeaks(t)
	b := neighbourBed(t)
	for name, change := range map[string]func(m *neighbourMessage){
		"another machine":          func(m *neighbourMessage) { m.machine[0] = 2 },
		"a port without a program": func(m *neighbourMessage) { m.name.server = netip.AddrPortFrom(m.name.server.Addr(), 9) },
		"no such connection":       func(m *neighbourMessage) { m.name.client = netip.AddrPortFrom(m.name.client.Addr(), 9) },
		"another host's address": func(m *neighbourMessage) {
			m.name.client = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), m.name.client.Port())
		},
		"ends that nobody asked for": func(m *neighbourMessage) { m.op = opBroken },
		"ends with another question": func(m *neighbourMessage) { m.op = opOwns },
	} {
		t.Log(name)
		m, p, q := b.client()
		change(m)
		b.asks(m, wordNo, p, q)
	}
	m, p, _ := b.client()
	b.asks(m, wordNo, p)
	b.asks(m, wordNo)
}

// TestNeighbourVersion has a stack of another release ask. The answer is no, and the log says
// why, once.
func TestNeighbourVersion(t *testing.T) {
	checkLeaks(t)
	b := neighbourBed(t)
	var log bytes.Buffer
	b.s.neighbours.log = slog.New(slog.NewTextHandler(&log, nil))
	for _, n := range []int{5, neighbourLen, 3 * neighbourLen} {
		u := b.talk()
		if _, err := u.Write(append([]byte("SMCL\x09"), make([]byte, n-5)...)); err != nil {
			t.Fatal(err)
		}
		if word, err := receiveWord(u, testTime); err != nil || word != wordNo {
			t.Errorf("answer %q, %v", word, err)
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "different release") || !strings.Contains(text, "version 9") {
		t.Errorf("log: %s", text)
	}
}

// TestNeighbourForged: a third host that has the addresses of a connection, in another
// network, gets no end of it: its TCP connection has other sequence numbers.
func TestNeighbourForged(t *testing.T) {
	for name, change := range map[string]func(m *neighbourMessage){
		"what the client sends":    func(m *neighbourMessage) { m.seqs.send++ },
		"what the client receives": func(m *neighbourMessage) { m.seqs.recv-- },
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			b := neighbourBed(t)
			m, p, q := b.client()
			change(m)
			u := b.asks(m, wordYes, p, q) // there is such a connection
			if err := sendWord(u, wordLocal); err != nil {
				t.Fatal(err)
			}
			b.opt.smc.Store(false)
			next(t, b.handOver(b.server, b.accept()), broker.EventNotCandidate)
			if err := sendWord(u, wordWithdraw); err != nil {
				t.Fatal(err)
			}
			if word, err := receiveWord(u, testTime); err != nil || word != wordWithdrawn {
				t.Errorf("word %q, %v", word, err)
			}
		})
	}
}

// TestNeighbourBytes: a client that sends on the TCP connection, which nobody may while
// SMC is at stake, gets TCP: its bytes are not taken for CLC messages.
func TestNeighbourBytes(t *testing.T) {
	checkLeaks(t)
	b := neighbourBed(t)
	m, p, q := b.client()
	u := b.asks(m, wordYes, p, q)
	if err := sendWord(u, wordLocal); err != nil {
		t.Fatal(err)
	}
	for fd := range b.socks {
		if _, err := unix.Write(fd, []byte("not idle")); err != nil {
			t.Fatal(err)
		}
	}
	sock := b.accept()
	time.Sleep(10 * time.Millisecond)
	ev := next(t, b.handOver(b.server, sock), broker.EventNotCandidate)
	if ev.Text == "" {
		t.Errorf("no reason: %+v", ev)
	}
}
