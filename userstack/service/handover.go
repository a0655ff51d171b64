// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs/softroce"
	"smcr/userstack/internal/takeover"
)

// succession is the part of a Service that hands over to another process.
type succession struct {
	s        *Service
	listener *net.UnixListener
	turn     sync.Mutex // one takeover at a time
	freeze   func() (thaw func(over bool))
	commit   func(pid int)
	control  nl.Control    // of the stack, without the history
	over     chan struct{} // closed when another process is the stack
	ending   chan *net.UnixListener
}

// OnHandOver sets functions that are called when another process takes over. It must be
// called before Run.
//
// freeze makes changes by commands wait until the function that it returns is called. If over
// is true, changes must fail from then on, because another process is the stack. Otherwise
// this process is the stack as before. commit is called in between, as soon as nothing but
// the death of the other process, whose ID is pid, can prevent that it becomes the stack. It
// is not called if the ID is not known.
func (s *Service) OnHandOver(freeze func() (thaw func(over bool)), commit func(pid int)) {
	s.succession.freeze, s.succession.commit = freeze, commit
}

// serve accepts processes that want to take over, until ctx ends.
func (x *succession) serve(ctx context.Context) {
	s := x.s
	l := x.listener
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		u, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example, no free descriptors
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		if err := s.claim.CheckPeer(u); err != nil {
			s.log.Warn("takeover refused", "err", err)
			_ = u.Close()
			continue
		}
		wg.Go(func() {
			conn := takeover.New(u, true)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			if err := s.in.Guard().Do("a takeover", func() { x.answer(ctx, conn) }); err != nil {
				s.log.Error("takeover failed", "err", err)
			}
		})
	}
}

// answer serves one process that wants to take over, or that has handed over before
// and ends now.
func (x *succession) answer(ctx context.Context, conn *takeover.Conn) {
	s := x.s
	m, err := conn.Receive(stepTime)
	m.Close()
	switch {
	case errors.As(err, new(*takeover.VersionError)):
		// The other process reads the version of this message and says the same.
		s.log.Warn("takeover refused", "err", err)
		_ = conn.Send(takeover.Message{Type: takeover.Refuse, Text: err.Error()})
		return
	case err != nil:
		s.log.Warn("takeover refused", "err", err)
		return
	case m.Type == takeover.Ended:
		s.history.receive(countsIn(&m))
		s.log.Info("a stack that had handed over has ended")
		_ = conn.Send(takeover.Message{Type: takeover.Done})
		return
	case m.Type != takeover.Hello:
		s.log.Warn("takeover refused", "err", fmt.Errorf("%w: %v", takeover.ErrMalformed, m.Type))
		return
	}
	// The other process tries again at once, and says it if it gives up.
	refuse := func(why string) {
		s.log.Debug("takeover refused", "why", why)
		_ = conn.Send(takeover.Message{Type: takeover.Refuse, Text: why})
	}
	if !x.turn.TryLock() {
		refuse("another process is taking over, or has taken over a moment ago: try again")
		return
	}
	defer x.turn.Unlock()
	if x.handedOver() || s.ending.Err() != nil {
		refuse("this stack is ending: try again")
		return
	}
	s.log.Info("another process asks to take over", "release", m.Release)
	if err := x.handOver(ctx, conn); err != nil {
		s.log.Warn("the other process has not taken over: this stack continues as before", "err", err)
	}
}

// handedOver reports whether another process is the stack.
func (x *succession) handedOver() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}

// handOver makes another process the stack. After an error, everything is as before.
func (x *succession) handOver(ctx context.Context, conn *takeover.Conn) error {
	s := x.s
	if err := x.offer(conn); err != nil {
		return err
	}
	if _, err := conn.Expect(takeover.Ready, preparing); err != nil {
		return err
	}
	over := false
	if f := x.freeze; f != nil {
		thaw := f()
		defer func() { thaw(over) }()
	}
	if r := s.cfg.RoCE; r != nil {
		sockets, err := r.HandOver()
		if err != nil {
			return err
		}
		defer func() {
			if over {
				r.Leave()
				return
			}
			if err := r.TakeBack(); err != nil {
				s.log.Error("RoCE version 2 does not receive any more", "err", err)
			}
		}()
		if err := sendSockets(conn, sockets); err != nil {
			return err
		}
	}
	own, err := countsOf(ctx, x.control, s.boundary)
	if err != nil {
		return err
	}
	all := s.history.apply(own)
	if err := conn.Send(takeover.Message{Type: takeover.Frozen, Stats: &all.stats, Fallbacks: &all.fallbacks, Known: toHandOver(s.in.Known())}); err != nil {
		return err
	}
	if _, err := conn.Expect(takeover.Commit, preparing); err != nil {
		return err
	}
	// The service manager must know the new process before that one reports to it.
	if pid, err := conn.PID(); err != nil {
		s.log.Warn("the process that takes over is not known", "err", err)
	} else if x.commit != nil && pid > 0 {
		x.commit(pid)
	}
	takeBack, err := s.boundary.handOver()
	if err != nil {
		return err
	}
	if err := conn.Send(takeover.Message{Type: takeover.Done}); err != nil {
		takeBack()
		return err
	}
	over = true
	s.history.give(own)
	latest, until := "never", time.Time{}
	if d := s.cfg.DrainTimeout; d > 0 {
		until = time.Now().Add(d)
		latest = until.Format(time.RFC3339)
	}
	ending, err := s.claim.Leave(until)
	if err != nil {
		s.log.Warn("commands do not find this stack while it ends", "err", err)
	}
	s.log.Info("another process is the stack now: this one ends after its last connection", "at_the_latest", latest)
	x.ending <- ending
	close(x.over)
	return nil
}

// offer sends the lock of the place.
func (x *succession) offer(conn *takeover.Conn) error {
	lock, err := x.s.claim.Lock()
	if err != nil {
		return err
	}
	m := takeover.Message{Type: takeover.Offer, Release: x.s.cfg.Release, Files: []*os.File{lock}}
	defer m.Close()
	return conn.Send(m)
}

// sendSockets sends UDP sockets in as many messages as necessary, and closes them.
func sendSockets(conn *takeover.Conn, all []softroce.Receivers) error {
	defer func() {
		for _, r := range all {
			_ = r.Close()
		}
	}()
	m := takeover.Message{Type: takeover.Sockets}
	flush := func() error {
		if len(m.Groups) == 0 {
			return nil
		}
		err := conn.Send(m)
		m.Groups, m.Files = nil, nil
		return err
	}
	for _, r := range all {
		if len(m.Files)+len(r.Files) > takeover.MaxFiles {
			if err := flush(); err != nil {
				return err
			}
		}
		m.Groups = append(m.Groups, takeover.Group{Index: r.Index, IPv6: r.IPv6, Files: len(r.Files)})
		m.Files = append(m.Files, r.Files...)
	}
	return flush()
}

// drainTick is the interval of checks whether a stack that has handed over has connections.
const drainTick = 100 * time.Millisecond

// reportEnd tells the process that is the stack now what this one has counted since it
// handed over.
func (x *succession) reportEnd() error {
	s := x.s
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	own, err := countsOf(ctx, x.control, s.boundary)
	if err != nil {
		return err
	}
	u, err := s.claim.DialNext(ctx)
	if err != nil {
		return err
	}
	conn := takeover.New(u, true)
	defer conn.Close()
	c := s.history.apply(own)
	if err := conn.Send(takeover.Message{Type: takeover.Ended, Stats: &c.stats, Fallbacks: &c.fallbacks}); err != nil {
		return err
	}
	_, err = conn.Expect(takeover.Done, stepTime)
	return err
}
