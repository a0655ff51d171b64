// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestLastWords: a program reads what was written before a reset, more than the first congestion window of ten packets, and
// then the reset. It has room for all of it, so TCP would have sent it.
func TestLastWords(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const words = 40 << 10
	connected := make(chan struct{})
	carried := func(reset func(*Flow)) func(*bed, *Flow) {
		return func(b *bed, f *Flow) {
			if f.Role == smc.Server {
				splice(b, f)
				return
			}
			inner := b.splitOff(f)
			if inner == nil {
				return
			}
			<-connected // otherwise connect fails
			if _, err := inner.Write(make([]byte, words)); err != nil {
				b.t.Error(err)
			}
			inner.Close()
			reset(f)
		}
	}
	for _, test := range []struct {
		name   string
		handle func(*bed, *Flow)
		sends  bool // the program on the server does
	}{
		{"the program, then the rest", carried(func(f *Flow) { f.ResetProgram(); f.Finish(true) }), false},
		{"both at once", carried(func(f *Flow) { f.Finish(true) }), false},
		{"declined", splice, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t, test.handle)
			l := b.listen(b.B.Addr())
			for range 10 {
				client, server := b.connect(l)
				if test.sends {
					if _, err := server.Write(make([]byte, words)); err != nil {
						t.Fatal(err)
					}
					// What the own window of the sender has not let go is lost over TCP, too.
					testkind.Eventually(t, "all is sent", func() (any, bool) {
						n := socktest.Ioctl(t, server, unix.SIOCOUTQ)
						return n, n == 0
					})
					_ = server.SetLinger(0)
					server.Close()
				} else {
					connected <- struct{}{}
				}
				got, err := io.ReadAll(client)
				if len(got) != words || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("read %d bytes, then %v; want %d, then ECONNRESET", len(got), err, words)
				}
			}
		})
	}
}

// TestLastWordsUnread: a program that reads nothing is reset all the same. What it has no room for is lost, as over TCP.
func TestLastWordsUnread(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, client, f, inner := newSplitBed(t)
	b.fill(inner, client)
	testkind.Eventually(t, "a reset does not wait for a program that has no room", func() (any, bool) {
		return nil, !f.program().sending()
	})
	inner.Close()
	f.ResetProgram()
	f.Finish(true)
	got, err := io.Copy(io.Discard, client)
	if got == 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, then %v; want some, then ECONNRESET", got, err)
	}
}

// TestResetOvertakes has a reset come before the last of what was sent before it: a program does not take it, since other bytes
// are missing, and asks for a better one (RFC 5961, section 3.2). Here that question, and all that it acknowledges, is lost, and so is the
// first reset.
func TestResetOvertakes(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	netnstest.Require(t, "nft")
	for _, aborts := range []bool{true, false} {
		t.Run(fmt.Sprint("the kernel can abort: ", aborts), func(t *testing.T) {
			t.Parallel()
			resetOvertakes(t, aborts)
		})
	}
}

func resetOvertakes(t *testing.T, aborts bool) {
	b, client, f, inner := newSplitBed(t)
	b.d[0].sockets.aborts = aborts
	port := client.RemoteAddr().(*net.TCPAddr).Port
	rules := fmt.Sprintf(`table inet lost {
		chain in { type filter hook input priority 0; tcp sport %d tcp flags & rst == rst quota until 60 bytes counter drop; }
		chain out { type filter hook output priority 0; tcp dport %d drop; }
	}`, port, port)
	if out, err := b.A.Command(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	const words = "the last words"
	if _, err := io.WriteString(inner, words); err != nil {
		t.Fatal(err)
	}
	inner.Close()
	f.ResetProgram()
	f.Finish(true)
	got, err := io.ReadAll(client)
	if string(got) != words || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %q, then %v; want %q, then ECONNRESET", got, err, words)
	}
	if out, err := b.A.Command(t.Context(), "nft", "list chain inet lost in").CombinedOutput(); err != nil || !strings.Contains(string(out), "packets 1 ") {
		t.Errorf("want one lost reset: %v\n%s", err, out)
	}
}
