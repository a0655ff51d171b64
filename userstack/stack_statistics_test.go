// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/stats"
	"smcr/userstack/linkgroup"
)

// counted returns the difference that f makes in the SMC-R counters of a stack. The two
// usages are the values after f.
func counted(t *testing.T, s *Stack, f func()) stats.Tech {
	t.Helper()
	before := list(t, s.Control().Stats)
	f()
	return list(t, s.Control().Stats).Sub(before).SMCR
}

// notInUser are the counters that a stack in user space does not have.
const notInUser = stats.CountOptional &^ (stats.CountRXUsage | stats.CountTXUsage)

// wantCounted compares counters, without those of connections.
func wantCounted(t *testing.T, what string, got, want stats.Tech) {
	t.Helper()
	want.NotCounted = notInUser
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestStatistics sends data of known sizes and checks each counter that depends on the
// size.
func TestStatistics(t *testing.T) {
	const (
		rmbe  = 64 << 10 // of both ends
		class = 3        // the class of 64 KiB
	)
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		var c, s *Conn
		got := counted(t, b.client, func() { c, s = b.connect() })
		wantCounted(t, "the first connection", got, stats.Tech{
			ClientV1:   1,
			TXBufSizes: stats.Histogram{class: 1}, RXBufSizes: stats.Histogram{class: 1},
			RXBufs: stats.Buffers{Alloc: 1}, RXUsage: rmbe,
		})

		sent := counted(t, b.client, func() {
			received := counted(t, b.server, func() {
				b.exchange(c, s, pattern(1, 100))
				b.exchange(c, s, pattern(2, 20000))
			})
			wantCounted(t, "two receive calls", received, stats.Tech{
				RXCalls: 2, RXBytes: 20100, RXSizes: stats.Histogram{0: 1, 2: 1}, RXUsage: rmbe,
			})
		})
		wantCounted(t, "two send calls", sent, stats.Tech{
			TXCalls: 2, TXBytes: 20100, TXSizes: stats.Histogram{0: 1, 2: 1},
			TXBufs: stats.Buffers{Alloc: 1}, RXUsage: rmbe, TXUsage: sent.TXUsage,
		})
		time.Sleep(settled)
		if u := list(t, b.client.Control().Stats).SMCR.TXUsage; u != 0 {
			t.Errorf("%d bytes of send memory are in use with everything delivered", u)
		}

		b.statisticsOfFull(t, c, s)
		b.statisticsOfOptions(t, c, s)

		var c2, s2 *Conn
		got = counted(t, b.client, func() { c2, s2 = b.connect() })
		wantCounted(t, "the second connection", got, stats.Tech{
			ClientV1:   1,
			TXBufSizes: stats.Histogram{class: 1}, RXBufSizes: stats.Histogram{class: 1},
			TXBufs: stats.Buffers{Reuse: 1}, RXBufs: got.RXBufs, RXUsage: 2 * rmbe,
		})
		if n := got.RXBufs; n.Alloc+n.Reuse != 1 {
			t.Errorf("the RMBE of the second connection: %+v", n)
		}
		b.finish(c2, s2)
		got = counted(t, b.client, func() { c2, s2 = b.connect() })
		if want := (stats.Buffers{Reuse: 1}); got.RXBufs != want {
			t.Errorf("an RMBE that another connection had: %+v", got.RXBufs)
		}
		b.finish(c2, s2)

		failed := counted(t, b.client, func() {
			b.finish(c, s)
			_, _ = c.Write([]byte("x"))
			_, _ = c.Read(make([]byte, 1))
		})
		wantCounted(t, "calls that fail", failed, stats.Tech{TXCalls: 1, RXCalls: 1})
	})
}

// statisticsOfFull makes a sender wait for its peer, which then reads everything.
func (b *bed) statisticsOfFull(t *testing.T, c, s *Conn) {
	const size = 300 << 10 // more than the send buffer and the RMBE of the peer can hold
	usage := list(t, b.server.Control().Stats).SMCR.RXUsage
	var received stats.Tech
	sent := counted(t, b.client, func() {
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(pattern(3, size))
			done <- err
		}()
		time.Sleep(settled)
		received = counted(t, b.server, func() {
			if _, err := io.ReadFull(s, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	})
	if n := sent.TXBufs; n.Full == 0 || n.FullPeer == 0 {
		t.Errorf("a sender that had to wait: %+v", n)
	}
	wantCounted(t, "a sender that has to wait", sent, stats.Tech{
		TXCalls: 1, TXBytes: size, TXSizes: stats.Histogram{6: 1}, TXBufs: sent.TXBufs, RXUsage: usage, TXUsage: sent.TXUsage,
	})
	if n := received.RXBufs.Full; n == 0 || received.RXCalls < 2 || received.RXBytes != size || received.RXSizes.Total() != received.RXCalls {
		t.Errorf("a reader that finds its RMBE full: %+v", received)
	}
}

// statisticsOfOptions makes each call that has a separate counter.
func (b *bed) statisticsOfOptions(t *testing.T, c, s *Conn) {
	usage := list(t, b.server.Control().Stats).SMCR.RXUsage
	got := counted(t, b.client, func() {
		for _, on := range []bool{true, false} {
			if err := c.SetCork(on); err != nil {
				t.Fatal(err)
			}
			if err := c.SetNoDelay(!on); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.WriteUrgent([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
	})
	wantCounted(t, "socket options and urgent data", got, stats.Tech{
		Cork: 1, NoDelay: 1, Urgent: 1, TXCalls: 1, TXBytes: 3, TXSizes: stats.Histogram{1}, RXUsage: usage,
	})
	got = counted(t, b.server, func() {
		if u, err := s.ReadUrgent(); u != 'c' || err != nil {
			t.Fatalf("the urgent byte: %q, %v", u, err)
		}
		if _, err := s.ReadUrgent(); err == nil {
			t.Fatal("the urgent byte was read twice")
		}
		if _, err := io.ReadFull(s, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
	})
	wantCounted(t, "receive of urgent data", got, stats.Tech{
		Urgent: 1, RXCalls: 2, RXBytes: 3, RXSizes: stats.Histogram{2}, RXUsage: usage,
	})
}

// TestStatisticsOfReserve counts a Commit as a send call and a Discard as a receive call.
func TestStatisticsOfReserve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		var received stats.Tech
		sent := counted(t, b.client, func() {
			if _, _, err := c.Reserve(5000); err != nil {
				t.Fatal(err)
			}
			if err := c.Commit(5000); err != nil {
				t.Fatal(err)
			}
			received = counted(t, b.server, func() {
				if n, err := s.Discard(5000); n != 5000 || err != nil {
					t.Fatal(n, err)
				}
			})
			time.Sleep(settled)
		})
		wantCounted(t, "Commit", sent, stats.Tech{
			TXCalls: 1, TXBytes: 5000, TXSizes: stats.Histogram{1}, TXBufs: stats.Buffers{Alloc: 1}, RXUsage: sent.RXUsage,
		})
		wantCounted(t, "Discard", received, stats.Tech{RXCalls: 1, RXBytes: 5000, RXSizes: stats.Histogram{1}, RXUsage: received.RXUsage})
		b.finish(c, s)
	})
}

// TestStatisticsOfHandshakes checks how long handshakes took, on both sides.
func TestStatisticsOfHandshakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		began := time.Now()
		c, s := b.connect()
		took := time.Since(began)
		client, server := list(t, b.client.Control().Stats), list(t, b.server.Control().Stats)
		for side, times := range map[string]stats.Times{"client": client.ClientHandshakeTimes, "server": server.ServerHandshakeTimes} {
			if n, mean := times.Total(), times.Mean(); n != 1 || mean <= 0 || mean > took {
				t.Errorf("%s: %d handshakes of %v within %v", side, n, mean, took)
			}
		}
		if client.ServerHandshakeTimes.Total()+server.ClientHandshakeTimes.Total() != 0 {
			t.Error("a handshake counts on the other side")
		}
		b.finish(c, s)
	})
}

// TestStatisticsOfFailover takes a device away under a connection.
func TestStatisticsOfFailover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{devices: 2})
		c, s := b.connect()
		time.Sleep(time.Second) // the second link
		b.exchange(c, s, pattern(1, 1000))
		var link *linkgroup.Link
		c.group().View(func(core *linkgroup.Group) {
			for _, l := range core.Links() {
				if l.ConnCount() > 0 {
					link = l
				}
			}
		})
		b.loseLink("client", link)
		b.exchange(c, s, pattern(2, 1000))
		if n := list(t, b.client.Control().Stats).Failovers; n != 1 {
			t.Errorf("the client counts %d failovers, want 1", n)
		}
		b.finish(c, s)
	})
}
