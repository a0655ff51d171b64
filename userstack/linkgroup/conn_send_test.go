// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestChunks: a connection has send memory only for bytes that are not confirmed, and
// for space that SendSpace returned.
func TestChunks(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, func(c *Config) { noTest(c); c.SendChunk = 1000 })
	c, h := srv.c, srv.h
	if c.SendChunk() != 2048 { // an eighth of the send buffer
		t.Fatalf("chunks of %d bytes", c.SendChunk())
	}
	srv.total = 1 << 20
	have := func(when string, want int) {
		t.Helper()
		if len(h.chunks) != want {
			t.Errorf("%s: %d chunks, want %d", when, len(h.chunks), want)
		}
	}
	have("at first", 0)
	for n := 5000; n > 0; {
		n -= srv.writeSome(n)
	}
	have("5000 bytes are written", 3)
	h.drain()
	s.runUntilIdle()
	have("they are confirmed", 0)
	if n := cli.readSome(1 << 20); n != 5000 {
		t.Errorf("the peer has %d bytes", n)
	}
	cli.h.drain()

	// Space that SendSpace returned stays, even if bytes are confirmed before DropSpace.
	srv.writeSome(1500)
	h.drain()
	a, b, err := c.SendSpace(1, 2000)
	if len(a) != 548 || len(b) != 2048 || err != nil {
		t.Fatalf("space for %d and %d bytes, %v", len(a), len(b), err)
	}
	have("space is in use", 2)
	s.runUntilIdle()
	have("the bytes before the space are confirmed", 2)
	c.DropSpace()
	have("the space is dropped", 0)
	cli.readSome(1500)

	// SendSpace returns all the room of the send buffer in two pieces, and no more.
	srv.writeSome(1000)
	if a, b, _ := c.SendSpace(1<<20, 0); len(a) != 1048 || len(a)+len(b) != 16<<10-1000 {
		t.Errorf("reserved %d and %d bytes", len(a), len(b))
	}
	c.DropSpace()
	if a, b, _ := c.SendSpace(0, 0); len(a)+len(b) != 0 {
		t.Errorf("reserved %d and %d bytes for nothing", len(a), len(b))
	}
	h.drain()
	s.runUntilIdle()
	cli.readSome(1000)
	have("in the end", 0)

	// A failed link confirms nothing: all of it is sent again.
	for n := 7000; n > 0; {
		n -= srv.writeSome(n)
	}
	h.acts = c.g.TakeActions(h.acts)
	have("7000 bytes are under way", 4)
	c.g.LinkFailed(s.now, c.link, errors.New("cable"))
	have("the link fails", 4)
	h.drain()
	s.runUntilIdle()
	have("they went over another link", 0)
	if n := cli.readSome(1 << 20); n != 7000 { // it checks the bytes
		t.Errorf("the peer has %d bytes", n)
	}
}

// TestPlaced: what is placed waits for what follows, and one message tells of all.
func TestPlaced(t *testing.T) {
	s, srv, cli := pair(t, 1, 1, 1, func(c *Config) { noTest(c); c.SendChunk = 1000 })
	c, h := srv.c, srv.h
	place := func(text string) {
		t.Helper()
		a, b, err := c.SendSpace(len(text), 0)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, text[copy(a, text):])
		c.Placed(len(text))
	}
	messages := func() (writes, sends int) {
		for _, a := range c.g.actions.list {
			switch a.Kind {
			case ActWrite:
				writes++
			case ActSend:
				sends++
			}
		}
		return writes, sends
	}
	want := strings.Repeat("placed ", 1000) // 7,000 bytes, in four chunks of 2,048
	for at := 0; at < len(want); at += 1750 {
		place(want[at:][:1750])
		if writes, sends := messages(); writes+sends > 0 {
			t.Fatalf("%d RDMA WRITEs and %d messages while there is more", writes, sends)
		}
	}
	c.Produced(s.now, 0)
	if writes, sends := messages(); writes != 4 || sends != 1 {
		t.Errorf("%d RDMA WRITEs and %d messages, want 4 and 1", writes, sends)
	}
	h.drain()
	s.runUntilIdle()
	if a, b := cli.c.RecvData(); string(a)+string(b) != want {
		t.Errorf("the peer has %d bytes", len(a)+len(b))
	}
	c.Produced(s.now, 0)
	if writes, sends := messages(); writes+sends > 0 {
		t.Errorf("%d RDMA WRITEs and %d messages of nothing", writes, sends)
	}
}

// TestChunkOfAnother: a chunk goes to another connection with what is in it, and
// nothing of that goes to the peer.
func TestChunkOfAnother(t *testing.T) {
	s, srv, cli := pair(t, 1, 1, 1, noTest)
	srv.h.keep = true
	var other *app
	s.connect(0, 16<<10, func(srv, cli *app) { srv.manual, cli.manual, other = true, true, srv })
	s.runUntilIdle()
	if other == nil || !other.open {
		t.Fatal("no second connection")
	}
	write := func(p *app, n int, text string) []byte {
		t.Helper()
		a, _, err := p.c.SendSpace(n, n)
		if len(a) < n || err != nil {
			t.Fatalf("reserved %d bytes, %v", len(a), err)
		}
		copy(a, text)
		p.c.Produced(s.now, len(text))
		p.h.drain()
		s.runUntilIdle()
		return a[:n]
	}
	secret := bytes.Repeat([]byte("secret"), 1000)
	first := write(srv, 6000, string(secret))
	second := write(other, 6000, "abc")
	if &first[0] != &second[0] {
		t.Fatal("the second connection has other memory than the first had")
	}
	if !bytes.Contains(second, []byte("secretsecret")) {
		t.Fatal("the memory has nothing of what the first one sent")
	}
	if a, _ := other.other.c.RecvData(); string(a) != "abc" {
		t.Errorf("the peer reads %q", a)
	}
	if m := other.other.c.element(); !bytes.Equal(m[3:], make([]byte, len(m)-3)) {
		t.Error("the peer's element has more than was written")
	}
	if a, _ := cli.c.RecvData(); !bytes.Equal(a, secret) {
		t.Error("the first connection's peer has other bytes")
	}
}

// TestChunkNone: without memory a write fails, and the connection goes on.
func TestChunkNone(t *testing.T) {
	s, srv, cli := pair(t, 1, 1, 1, noTest)
	srv.total = 1 << 20
	srv.h.noMemory = true
	if a, b, err := srv.c.SendSpace(1, 100); len(a)+len(b) > 0 || !errors.Is(err, errNoMemory) {
		t.Fatalf("reserved %d bytes, %v", len(a)+len(b), err)
	}
	srv.h.noMemory = false
	srv.writeSome(100)
	srv.h.noMemory = true
	if a, b, err := srv.c.SendSpace(1, 1<<20); len(a) != 16<<10-100 || len(b) > 0 || err != nil {
		t.Errorf("reserved %d and %d bytes, %v", len(a), len(b), err)
	}
	srv.c.DropSpace()
	srv.h.drain()
	s.runUntilIdle()
	if n := cli.readSome(1 << 20); n != 100 {
		t.Errorf("the peer has %d bytes", n)
	}
}
