// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/wire"
)

// proposal is a PROPOSAL of a peer that offers version 1, or version 2 alone.
func proposal(t testing.TB, v2 bool) string {
	t.Helper()
	p := wire.Proposal{Version: 1, TypeV1: wire.ModeR, TypeV2: wire.ModeNone, IPv4: netip.MustParsePrefix("127.0.0.0/8")}
	if v2 {
		p = wire.Proposal{Version: 2, TypeV1: wire.ModeNone, TypeV2: wire.ModeR, Growth: make([]byte, 100)}
	}
	b, err := p.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantDecline is a peer that wants a DECLINE of a version and sends data then.
func wantDecline(version uint8) func(*bufio.ReadWriter) error {
	return func(c *bufio.ReadWriter) error {
		head, err := c.Peek(wire.HeaderLen)
		if err != nil {
			return err
		}
		h, err := wire.ParseHeader(head)
		if err != nil {
			return err
		}
		b := make([]byte, h.Length)
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		d, err := wire.ParseDecline(b)
		if err != nil || d.Version != version {
			return fmt.Errorf("%+v, %w", d, err)
		}
		if _, err := c.WriteString("y"); err != nil {
			return err
		}
		return c.Flush()
	}
}

// readAll is a stack that has read what the peer sent.
func readAll(testing.TB) func(*script, int) error {
	return func(_ *script, sock int) error {
		for begin := time.Now(); time.Since(begin) < patience; time.Sleep(ms) {
			n, _, err := unix.Recvfrom(sock, make([]byte, 4096), unix.MSG_DONTWAIT)
			if err == nil && n > 0 {
				return nil
			}
		}
		return errors.New("nothing to be read")
	}
}

func sendByte(sock int) error { return unix.Sendto(sock, []byte{1}, unix.MSG_NOSIGNAL, nil) }

// tcpPair returns the two ends of a TCP connection, the second as a descriptor.
func tcpPair(t *testing.T) (peer *net.TCPConn, sock int) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	f, err := a.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return c.(*net.TCPConn), int(f.Fd())
}

// A PROPOSAL is declined and taken from the connection, and nothing else is.
func TestDecline(t *testing.T) {
	testkind.System(t)
	v1, v2 := proposal(t, false), proposal(t, true)
	forged := []byte(v1)
	forged[len(forged)-1]++ // no trailer
	for _, tt := range []struct {
		name  string
		parts []string // sent one after the other
		end   bool     // by the peer's end of file
		wait  time.Duration
		want  uint8 // version of the DECLINE, or 0
		fails bool
		rest  string
	}{
		{"PROPOSAL", []string{v1}, false, 0, 1, false, ""},
		{"PROPOSAL, awaited", []string{v1}, false, proposalTime, 1, false, ""},
		{"PROPOSAL of version 2", []string{v2}, false, 0, 2, false, ""},
		{"PROPOSAL in parts", []string{v1[:1], v1[1:7], v1[7:9], v1[9:]}, false, proposalTime, 1, false, ""},
		{"half a PROPOSAL", []string{v1[:20]}, false, 0, 0, true, v1[:20]},
		{"PROPOSAL and data", []string{v1 + "data"}, false, 0, 1, false, "data"},
		{"data", []string{"GET / HTTP/1.0\r\n\r\n"}, false, proposalTime, 0, false, "GET / HTTP/1.0\r\n\r\n"},
		{"data of one byte", []string{"\xe3"}, false, proposalTime, 0, false, "\xe3"},
		{"no PROPOSAL after all", []string{string(forged)}, false, proposalTime, 0, false, string(forged)},
		{"other CLC message", []string{v1[:4] + "\x02" + v1[5:]}, false, proposalTime, 0, false, v1[:4] + "\x02" + v1[5:]},
		{"silence", nil, false, 50 * ms, 0, false, ""},
		{"end of file", nil, true, proposalTime, 0, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &supervisor{ctx: t.Context(), log: slog.New(slog.DiscardHandler), sessions: newSessions(nil, nil)}
			peer, sock := tcpPair(t)
			sent := make(chan error, 1)
			send := func() {
				var err error
				for i, part := range tt.parts {
					if i > 0 {
						time.Sleep(20 * ms)
					}
					_, werr := io.WriteString(peer, part)
					err = errors.Join(err, werr)
				}
				if tt.end {
					err = errors.Join(err, peer.CloseWrite())
				}
				sent <- err
			}
			if tt.wait == 0 {
				send()
				until(t, "data", func() bool { n, err := unix.IoctlGetInt(sock, unix.SIOCINQ); return err == nil && n > 0 })
			} else {
				go send()
			}
			begin := time.Now()
			declined, err := decline(s.ctx, sock, tt.wait)
			if declined != (tt.want > 0) || (err != nil) != tt.fails {
				t.Fatalf("%v, %v", declined, err)
			}
			if took := time.Since(begin); tt.parts == nil && took < tt.wait && !tt.end {
				t.Errorf("gave up after %v", took)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 4096)
			n, _, err := unix.Recvfrom(sock, b, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				n = 0
			}
			if got := string(b[:n]); got != tt.rest {
				t.Errorf("left %q, want %q", got, tt.rest)
			}
			if tt.want > 0 {
				_ = peer.SetDeadline(time.Now().Add(patience))
				if err := wantDecline(tt.want)(bufio.NewReadWriter(bufio.NewReader(peer), bufio.NewWriter(peer))); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDeclineReset: the program still finds the error of a connection that was reset.
func TestDeclineReset(t *testing.T) {
	testkind.System(t)
	peer, sock := tcpPair(t)
	if err := errors.Join(peer.SetLinger(0), peer.Close()); err != nil {
		t.Fatal(err)
	}
	until(t, "reset", func() bool { return wasReset(sock) })
	if declined, err := decline(t.Context(), sock, time.Minute); declined || err != nil {
		t.Errorf("%v, %v", declined, err)
	}
	if _, err := unix.Read(sock, make([]byte, 1)); err != unix.ECONNRESET {
		t.Errorf("read: %v, want ECONNRESET", err)
	}
}

// The age of a connection tells whether a stack that has ended may have
// answered the SYN of the connection.
func TestMayHaveAnnounced(t *testing.T) {
	testkind.System(t)
	begin := time.Now()
	_, sock := tcpPair(t)
	time.Sleep(300 * ms)
	before := time.Now()
	age, sent := handshake(sock)
	after := time.Now()
	if age < 250*ms || age > after.Sub(begin)+50*ms { // by a coarser clock
		t.Errorf("age %v of %v", age, after.Sub(begin))
	}
	if sent.After(after.Add(-age)) || sent.Before(before.Add(-age-time.Second)) {
		t.Errorf("SYN-ACK %v ago, age %v", after.Sub(sent), age)
	}
	over := make(chan struct{})
	x := newSessions(doneBroker{over: over}, nil)
	if x.mayHaveAnnounced(time.Now()) || x.everEnded() {
		t.Error("an announcement, although no session has ended")
	}
	close(over)
	if !x.mayHaveAnnounced(time.Now()) || !x.everEnded() {
		t.Error("no announcement by a session that has just ended")
	}
	x.lastEnded, x.maybeAlive = x.last(), 1
	if !x.mayHaveAnnounced(time.Now()) {
		t.Error("no announcement by a stack that may still run")
	}
	x.maybeAlive, x.lastDead = 0, time.Now()
	if x.mayHaveAnnounced(time.Now().Add(ms)) || !x.mayHaveAnnounced(x.lastDead.Add(-ms)) {
		t.Error("wrong answer for a stack that has ended")
	}
}

type doneBroker struct {
	Broker
	over chan struct{}
}

func (b doneBroker) Done() <-chan struct{} { return b.over }

// TestLeaves: what the kernel does not let out in time resets the connection.
func TestLeaves(t *testing.T) {
	testkind.System(t)
	peer, sock := tcpPair(t)
	if err := awaitSent(sock, 0); err != nil {
		t.Fatalf("nothing written: %v", err)
	}
	// The peer's window stands for the gate.
	var written int
	until(t, "more than the window", func() bool {
		n, _ := unix.SendmsgN(sock, make([]byte, 64<<10), nil, nil, unix.MSG_DONTWAIT)
		written += max(0, n)
		left, err := unix.IoctlGetInt(sock, unix.SIOCOUTQNSD)
		return err == nil && left > 0
	})
	if err := awaitSent(sock, 20*ms); !errors.Is(err, errGated) {
		t.Errorf("%v, want errGated", err)
	}
	if l, err := unix.GetsockoptLinger(sock, unix.SOL_SOCKET, unix.SO_LINGER); err != nil || l.Onoff != 1 || l.Linger != 0 {
		t.Errorf("SO_LINGER %+v, %v: closing makes no reset", l, err)
	}
	go io.CopyN(io.Discard, peer, int64(written)) //nolint:errcheck // the test sees
	if err := awaitSent(sock, patience); err != nil {
		t.Error(err)
	}
}
