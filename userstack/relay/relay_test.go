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
	time.Sleep(10 * time.Millisecond) // what waits for the program's close waits by now
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
	// SO_LINGER must not drop what shutdown promised to send.
	t.Run("linger", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.linger0.Store(true)
		b.net.peerEnds()
		b.wantEnd(nil)
		b.write("the rest")
		b.shutdown()
		b.close()
		b.wantOver(false, false)
		b.peerGets("the rest", true)
	})
}

func TestProgramCloses(t *testing.T) {
	b := newRelayBed(t, nil)
	b.write("last words")
	b.close()
	b.wantOver(false, false)
	b.peerGets("last words", true)
}

// A close with data unread is a reset for the peer, as with TCP.
func TestProgramClosesUnread(t *testing.T) {
	t.Run("in the pair", func(t *testing.T) {
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
		b.wantOver(true, false)
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
			if n := b.brokens.Load(); n != 0 {
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
	b.wantOver(true, false)
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
		b.write("into the pair")
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(unix.ECONNRESET)
	})
	// The launcher can put nothing into a pair that the program has shut down
	// for writing: see the package's description.
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.net.peerResets()
		b.wantOver(false, true)
		b.wantEnd(nil)
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

func TestLingerZero(t *testing.T) {
	t.Run("close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.linger0.Store(true)
		b.write("dropped or not")
		b.close()
		b.wantOver(true, false)
	})
	t.Run("after half close", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.shutdown()
		b.peerGets("", true)
		b.linger0.Store(true)
		b.close()
		b.wantOver(true, false)
	})
	t.Run("after the peer's close", func(t *testing.T) {
		b := newRelayBed(t, func(b *relayBed) { b.net.peerCloses() })
		b.linger0.Store(true)
		b.wantEnd(nil)
		b.close()
		b.wantOver(false, false)
	})
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
		b.wantOver(true, false)
		b.wantEnd(nil)
	})
}

// What a program wrote before it ended is sent though its launcher has gone.
func TestLauncherLeaves(t *testing.T) {
	const written = "a last word"
	closed := func(t *testing.T) *relayBed {
		b := newRelayBed(t, func(b *relayBed) { b.net.full = true })
		b.write(written)
		b.close()
		close(b.left)
		return b
	}
	t.Run("program before it", func(t *testing.T) {
		b := closed(t)
		time.Sleep(2 * orphanGrace)
		b.net.change(func() { b.net.full = false })
		b.peerGets(written, true)
		b.wantOver(false, false)
	})
	t.Run("program soon after it", func(t *testing.T) {
		b := newRelayBed(t, nil)
		b.write(written)
		close(b.left)
		time.Sleep(orphanGrace / 4)
		b.close()
		b.peerGets(written, true)
		b.wantOver(false, false)
	})
	t.Run("program stays", func(t *testing.T) {
		b := newRelayBed(t, nil)
		close(b.left)
		b.wantEnd(unix.ECONNRESET)
		b.wantOver(true, true)
	})
	t.Run("and the service ends", func(t *testing.T) {
		b := closed(t)
		time.Sleep(orphanGrace)
		close(b.stop)
		b.wantOver(true, false)
	})
}
