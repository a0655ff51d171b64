// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
)

// rules has a row for each rule of a Relay, over TCP.
var rules = []struct {
	name string
	tune func(r *Relay) // may be nil
	play func(b *rulesBed)
}{
	{"program closes", nil, func(b *rulesBed) {
		b.write("last words")
		b.close()
		b.over(false)
		b.peerGets("last words", nil)
	}},
	{"program shuts down writing", nil, func(b *rulesBed) {
		b.write("request")
		b.shutdown()
		b.peerReads("request")
		if n, err := b.peer.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			b.t.Fatalf("the peer reads %d, %v", n, err)
		}
		big := strings.Repeat("answer ", 100<<10)
		go func() { _, _ = io.WriteString(b.peer, big); _ = b.peer.CloseWrite() }()
		b.read(big)
		b.programEnd(nil)
		b.over(false)
	}},
	{"program shuts down reading", nil, func(b *rulesBed) {
		if err := unix.Shutdown(b.fd, unix.SHUT_RD); err != nil {
			b.t.Fatal(err)
		}
		for range 3 {
			b.peerSends("nobody reads")
			b.write("still here")
			b.peerReads("still here")
		}
		b.taken()
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.shutdown()
		b.over(false)
		b.peerGets("", nil)
	}},
	{"program shuts down both", nil, func(b *rulesBed) {
		b.write("last words")
		if err := unix.Shutdown(b.fd, unix.SHUT_RDWR); err != nil {
			b.t.Fatal(err)
		}
		b.over(false)
		b.peerGets("last words", nil)
	}},
	{"program shuts down both with data unread", nil, func(b *rulesBed) {
		b.peerSends("unread")
		b.wantUnread(6)
		b.write("last words")
		if err := unix.Shutdown(b.fd, unix.SHUT_RDWR); err != nil {
			b.t.Fatal(err)
		}
		b.read("unread") // as over TCP
		b.programEnd(nil)
		b.over(false)
		b.peerGets("last words", nil)
	}},
	{"program shuts down both, and data follows", nil, func(b *rulesBed) {
		if err := unix.Shutdown(b.fd, unix.SHUT_RDWR); err != nil {
			b.t.Fatal(err)
		}
		b.peerSends("nobody reads")
		// A reset if the data comes while the relay still has the socket. Otherwise the kernel
		// resets the connection, whose socket is closed.
		b.end()
		b.peerGetsEnd()
	}},
	{"peer shuts down writing", nil, func(b *rulesBed) {
		b.peerSends("greeting")
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.read("greeting")
		b.wantEnd(nil)
		b.write("answer")
		b.close()
		b.over(false)
		b.peerGets("answer", nil)
	}},
	{"program closes with data unread", nil, func(b *rulesBed) {
		b.peerSends("unread")
		b.wantUnread(6)
		b.write("last words")
		b.close()
		b.over(true)
		b.peerGets("last words", unix.ECONNRESET)
	}},
	{"peer resets", nil, func(b *rulesBed) {
		b.peerResets()
		b.over(true)
		b.programEnd(unix.ECONNRESET)
		if _, err := b.send("x"); err != unix.EPIPE {
			b.t.Errorf("the write after that: %v, want EPIPE", err)
		}
	}},
	{"peer resets, data unread", nil, func(b *rulesBed) {
		b.peerSends("unread")
		b.wantUnread(6)
		b.peerResets()
		b.over(true)
		b.read("unread")
		b.programEnd(unix.ECONNRESET)
	}},
	{"program writes to a peer that has closed", nil, func(b *rulesBed) {
		b.peerSends("bye")
		_ = b.peer.Close()
		b.read("bye")
		b.wantEnd(nil)
		for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
			if _, err := b.send("nobody hears"); err == unix.EPIPE {
				break
			} else if err != nil || time.Now().After(end) {
				b.t.Fatalf("write: %v", err)
			}
		}
		b.over(true)
		b.programEnd(nil)
	}},
	{"peer resets after its end of file", nil, func(b *rulesBed) {
		b.peerSends("bye")
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.read("bye")
		b.wantEnd(nil)
		b.peerResets()
		for end := time.Now().Add(testTime); ; time.Sleep(time.Millisecond) {
			if _, err := b.send("nobody hears"); err == unix.EPIPE {
				break
			} else if err != nil || time.Now().After(end) {
				b.t.Fatalf("write: %v", err)
			}
		}
		b.over(true)
		b.programEnd(nil)
	}},
	{"SO_LINGER 0", nil, func(b *rulesBed) {
		b.setLinger(0)
		b.close()
		b.over(true)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"SO_LINGER 0 after both ends of file", nil, func(b *rulesBed) {
		if err := b.peer.CloseWrite(); err != nil {
			b.t.Fatal(err)
		}
		b.wantEnd(nil)
		b.setLinger(0)
		big := strings.Repeat("the rest ", 4<<10)
		b.write(big)
		b.shutdown()
		b.close()
		b.over(false)
		b.peerGets(big, nil)
	}},
	{"program gone, peer sends and takes nothing", nil, func(b *rulesBed) {
		words := b.fill()
		b.close()
		begin := time.Now()
		b.peerSends("nobody reads")
		b.over(true)
		if took := time.Since(begin); took < b.relay.DrainIdle || took > testTime/2 {
			b.t.Errorf("over after %v", took)
		}
		got, err := io.ReadAll(b.peer)
		if !errors.Is(err, unix.ECONNRESET) || !strings.HasPrefix(words, string(got)) {
			b.t.Errorf("the peer got %q, %v", socktest.Clipped(got), err)
		}
	}},
	{"program gone, peer sends and is slow", func(r *Relay) { r.DrainIdle = time.Second }, func(b *rulesBed) {
		words := b.fill()
		b.close()
		b.peerSends("nobody reads")
		begin := time.Now()
		var got strings.Builder
		buf := make([]byte, 8<<10)
		b.closeSock()
		for {
			n, err := b.peer.Read(buf)
			got.Write(buf[:n])
			if err != nil {
				if !errors.Is(err, unix.ECONNRESET) {
					b.t.Errorf("the peer reads %v", err)
				}
				break
			}
			time.Sleep(60 * time.Millisecond)
		}
		if got.String() != words {
			b.t.Errorf("the peer got %d of %d bytes", got.Len(), len(words))
		}
		if took := time.Since(begin); took < b.relay.DrainIdle {
			b.t.Errorf("took only %v, no test of a limit of %v", took, b.relay.DrainIdle)
		}
		b.over(true)
	}},
	{"program gone, last words in the socket", func(r *Relay) { r.DrainIdle = testTime }, func(b *rulesBed) {
		var words strings.Builder
		for n := 0; n < 4<<10; { // more than the peer has room for
			var err error
			b.write(strings.Repeat("words ", 1000))
			words.WriteString(strings.Repeat("words ", 1000))
			for range 20 { // an acknowledgement takes 40 ms at most
				time.Sleep(5 * time.Millisecond)
				if n, err = unix.IoctlGetInt(b.sock, unix.SIOCOUTQ); err != nil {
					b.t.Fatal(err)
				}
				if n < 4<<10 {
					break
				}
			}
		}
		b.peerSends("unread")
		b.wantUnread(6)
		b.close()
		b.closeSock()
		time.Sleep(100 * time.Millisecond) // a reset would be there
		b.peerGets(words.String(), unix.ECONNRESET)
		b.over(true)
	}},
	{"program gone, peer sends and is slow for too long", func(r *Relay) { r.DrainLimit = 500 * time.Millisecond }, func(b *rulesBed) {
		words := b.fill()
		b.close()
		b.peerSends("nobody reads")
		got, buf := 0, make([]byte, 1<<10)
		b.closeSock()
		for {
			n, err := b.peer.Read(buf)
			got += n
			if err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got >= len(words) {
			b.t.Errorf("the peer got all %d bytes", got)
		}
		b.over(true)
	}},
	{"urgent bytes", nil, func(b *rulesBed) {
		socktest.NeedOOB(b.t)
		if err := unix.Sendto(b.fd, []byte("before!"), unix.MSG_OOB, nil); err != nil {
			b.t.Fatal(err)
		}
		b.write("behind")
		peer, err := NewSocket(b.peer)
		if err != nil {
			b.t.Fatal(err)
		}
		var got []byte
		marks := ""
		buf := make([]byte, 100)
		for len(got) < len("before!behind") {
			n, urgent, err := peer.ReadMark(buf)
			if err != nil {
				b.t.Fatal(err)
			}
			if got = append(got, buf[:n]...); urgent {
				marks += string(got[len(got)-1:])
			}
		}
		if string(got) != "before!behind" || marks != "!" {
			b.t.Errorf("the peer got %q, urgent %q", got, marks)
		}
		if _, err := peer.WriteUrgent([]byte("and back?")); err != nil {
			b.t.Fatal(err)
		}
		b.wantUrgent('?')
		b.read("and back")
		b.close()
		b.over(false)
	}},
	{"launcher leaves, program outlives it", nil, func(b *rulesBed) {
		begin := time.Now()
		close(b.launcherGone)
		b.over(true)
		if took := time.Since(begin); took < orphanGrace {
			b.t.Errorf("over after %v", took)
		}
		b.programEnd(unix.ECONNRESET)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"launcher leaves, program goes with it", nil, func(b *rulesBed) {
		words := b.fill()
		close(b.launcherGone)
		time.Sleep(orphanGrace / 4)
		b.close()
		time.Sleep(2 * orphanGrace)
		b.peerGets(words, nil)
		b.over(false)
	}},
	{"launcher leaves and cuts orphans", nil, func(b *rulesBed) {
		b.fill()
		close(b.launcherGone)
		b.close()
		time.Sleep(2 * orphanGrace)
		close(b.cutOrphans)
		b.over(true)
	}},
	{"launcher leaves, peer takes nothing", func(r *Relay) { r.OrphanLimit = 3 * orphanGrace }, func(b *rulesBed) {
		b.fill()
		b.close()
		close(b.launcherGone)
		b.over(true)
	}},
	{"stopped", nil, func(b *rulesBed) {
		close(b.stop)
		b.over(true)
		b.programEnd(unix.ECONNRESET)
		b.peerGets("", unix.ECONNRESET)
	}},
	{"stopped while last words wait", func(r *Relay) { r.DrainIdle = testTime }, func(b *rulesBed) {
		b.fill()
		b.close()
		b.peerSends("nobody reads")
		time.Sleep(50 * time.Millisecond)
		close(b.stop)
		b.over(true)
	}},
}

// TestRules plays each rule with each kind of sockets.
func TestRules(t *testing.T) {
	for kind := range kinds {
		if testing.Short() && kind != "engine" {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			for _, r := range rules {
				t.Run(r.name, func(t *testing.T) { r.play(newRulesBed(t, kind, r.tune)) })
			}
		})
	}
}
