// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestProgramHalfCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.write("request")
	b.shutdown()
	b.peerGets("request", true)
	b.net.peerSends("first")
	b.read("first")
	// Real time: nothing says that what waits for the program's close waits by now.
	time.Sleep(10 * time.Millisecond)
	big := strings.Repeat("second", 200<<10)
	b.net.peerSends(big)
	b.read(big)
	b.net.peerCloses()
	b.wantEnd(nil)
	b.close()
	b.wantOver(false, false)
}

func TestPeerHalfCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.net.peerSends("greeting")
	b.net.peerEnds()
	b.read("greeting")
	b.wantEnd(nil)
	big := strings.Repeat("answer", 200<<10)
	b.write(big)
	b.peerGets(big, false)
	b.close()
	b.wantOver(false, false)
	b.peerGets(big, true)
}

// Once both sides have shut down writing nothing is left to carry, even for a
// program that keeps its descriptor. What it has not read stays readable.
func TestBothHalfClose(t *testing.T) {
	t.Run("program first", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerSends("the rest")
		b.net.peerEnds()
		b.wantOver(false, false)
		b.read("the rest")
		b.wantEnd(nil)
	})
	t.Run("peer first", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerEnds()
		b.wantEnd(nil)
		b.write("the rest")
		b.shutdown()
		b.wantOver(false, false)
		b.peerGets("the rest", true)
		b.wantEnd(nil)
	})
}

func TestProgramCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.write("last words")
	b.close()
	b.peerGets("last words", true)
	b.net.peerEnds() // TCP does not tell a close from a shutdown
	b.wantOver(false, false)
}

// A close with data unread is a reset for the peer, as with TCP.
func TestProgramClosesUnread(t *testing.T) {
	t.Run("in the socket", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("all of it", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.net.peerEnds()
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("on the way", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.close()
		if !<-b.ended || !b.net.await(func() bool { return b.net.closed && b.net.aborted }) {
			t.Error("no reset for the peer")
		}
	})
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.close()
		b.wantOver(true, false)
	})
}

// The peer closes, and then the program, before the relay has looked.
func TestCloseAfterPeer(t *testing.T) {
	b := newRelayBed(t, func(b *relayBed) {
		b.net.peerCloses()
		b.close()
	})
	b.wantOver(false, false)
}

// A program that has only read what came before the peer's close closes too.
func TestPeerClosesProgramReads(t *testing.T) {
	for _, when := range []string{"before the relay", "while it runs"} {
		t.Run(when, func(t *testing.T) {
			big := strings.Repeat("a long answer ", 1<<18)
			b := newRelayBed(t, func(b *relayBed) {
				if when == "before the relay" {
					b.net.peerSends(big)
					b.net.peerCloses()
				}
			})
			if when != "before the relay" {
				b.net.peerSends(big)
				b.wantUnread(1)
				b.net.peerCloses()
			}
			for len(big) > 0 {
				n := min(64<<10, len(big))
				b.read(big[:n])
				big = big[n:]
			}
			b.wantEnd(nil)
			if n := b.resets.Load(); n != 0 {
				t.Errorf("a reset before the program wrote")
			}
			b.close()
			b.wantOver(false, false)
		})
	}
}

// What a program writes to a peer that has closed makes it a reset. The program still reads an
// end of file, as over TCP.
func TestPeerClosesProgramWrites(t *testing.T) {
	b := newRelayBed(t, func(b *relayBed) {
		b.net.peerSends("bye")
		b.net.peerCloses()
	})
	b.read("bye")
	b.wantEnd(nil)
	b.write("nobody hears")
	b.wantOver(true, true)
	b.wantEnd(nil)
	if _, err := b.send("x"); err != unix.EPIPE {
		t.Errorf("the write after that: %v, want EPIPE", err)
	}
}

func TestPeerResets(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerResets()
		b.wantEnd(unix.ECONNRESET)
		b.wantOver(false, true)
	})
	t.Run("before the relay", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerResets() })
		b.wantEnd(unix.ECONNRESET)
		b.wantOver(false, true)
	})
	t.Run("data unread", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends("unread")
		b.wantUnread(6)
		b.net.peerResets()
		b.wantOver(false, true)
		b.read("unread")
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("while delivering", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.net.peerResets()
		b.wantOver(false, true)
	})
	t.Run("while the program writes", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.write("into the socket")
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("after half close, data not sent", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.write("waits for room")
		b.shutdown()
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
}

// However close together a reset and the program's writes are, the program
// sees the reset: in the write that waits for room, or in the next read.
func TestPeerResetsBusy(t *testing.T) {
	for range 50 {
		b := newRelayBed(t, nil)
		var wg sync.WaitGroup
		var werr error
		wg.Go(func() {
			for werr == nil {
				_, werr = b.send("some of the data")
			}
		})
		b.peerGetsSome()
		b.net.peerResets()
		b.wantOver(false, true)
		wg.Wait()
		if werr != unix.ECONNRESET {
			if werr != unix.EPIPE {
				t.Errorf("write: %v", werr)
			}
			b.wantEnd(unix.ECONNRESET)
		}
		b.close()
	}
}

func (b *relayBed) peerGetsSome() {
	b.t.Helper()
	if !b.net.await(func() bool { return b.net.out.Len() > 0 }) {
		b.t.Fatal("the peer got nothing")
	}
}

// The end of the service resets what is left.
func TestStop(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		b := newRelayBed(t, nil)
		close(b.stop)
		b.wantOver(true, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("before", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { close(b.stop) })
		b.wantOver(true, true)
		b.wantEnd(unix.ECONNRESET)
	})
	t.Run("stuck both ways", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.net.peerSends(strings.Repeat("more than fits ", 1<<20))
		b.wantUnread(100_000)
		b.write("waits for room")
		close(b.stop)
		b.wantOver(true, true)
	})
	t.Run("peer closed", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerCloses() })
		b.wantEnd(nil)
		close(b.stop)
		b.wantOver(true, true)
		b.wantEnd(nil)
	})
}
