// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/userstack"
)

// traffic is connections between two victims, on which data is echoed all the time.
type traffic struct {
	a, b   *victim
	conns  []*flow
	groups map[*victim][]nl.LinkGroup // as they were at the beginning
}

// flow is one of the connections.
type flow struct {
	*userstack.Conn
	rounds atomic.Int64
	stop   chan struct{}
	ended  chan error
}

// flows is how many connections there are in each direction.
const flows = 2

func newTraffic(t *testing.T, a, b *victim) *traffic {
	t.Helper()
	tr := &traffic{a: a, b: b, groups: map[*victim][]nl.LinkGroup{}}
	for _, d := range [][2]*victim{{a, b}, {b, a}} {
		for range flows {
			f := &flow{Conn: d[0].dialSMC(t, d[1]), stop: make(chan struct{}), ended: make(chan error, 1)}
			r := rand.New(rand.NewPCG(1, uint64(len(tr.conns))))
			tr.conns = append(tr.conns, f)
			go func() { f.ended <- f.run(r) }()
		}
	}
	t.Cleanup(func() {
		for _, f := range tr.conns {
			f.Close()
		}
	})
	tr.progress(t, 2)
	tr.groups[a], tr.groups[b] = a.groups(t, nil), b.groups(t, nil)
	return tr
}

// run echoes data until it is told to stop, and compares it.
func (f *flow) run(r *rand.Rand) error {
	for {
		select {
		case <-f.stop:
			return nil
		default:
		}
		if err := exchange(f.Conn, r, 1+r.IntN(60_000)); err != nil {
			return err
		}
		f.rounds.Add(1)
		// Real time: it makes traffic, and the machine is for others, too.
		time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
	}
}

// exchange sends n bytes and compares what comes back.
func exchange(c net.Conn, r *rand.Rand, n int) error {
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	if err := c.SetDeadline(time.Now().Add(echoTime)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, n)
	_, err := io.ReadFull(c, got)
	if err := errors.Join(err, <-sent); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("the echo differs from what was sent")
	}
	return nil
}

// progress waits until each connection has echoed n times more.
func (tr *traffic) progress(t testing.TB, n int64) {
	t.Helper()
	for i, f := range tr.conns {
		goal := f.rounds.Load() + n
		err := netnstest.Until(echoTime, func() error {
			select {
			case err := <-f.ended:
				f.ended <- err
				return netnstest.Stop(fmt.Errorf("ended: %w", err))
			default:
			}
			if got := f.rounds.Load(); got < goal {
				return fmt.Errorf("echoed %d times, want %d", got, goal)
			}
			return nil
		})
		if err != nil {
			t.Errorf("honest connection %d: %v", i, err)
		}
	}
}
