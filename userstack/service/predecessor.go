// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"
	"time"

	"smcr/internal/place"
	"smcr/quota"
	"smcr/rdmaverbs/softroce"
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/takeover"
)

// ErrPredecessorEnded means that the stack that was to hand over has ended before it did.
// Another one can start as usual.
var ErrPredecessorEnded = errors.New("the stack that was to hand over has ended")

// ErrCannotTakeOver means that the stack that runs does not hand over. It continues as
// before. The text says what to do.
var ErrCannotTakeOver = errors.New("cannot take over from the stack that runs")

const (
	// stepTime is how long the other process may take for one step of a takeover, and how
	// long a process that is refused tries again: another process may be taking over, or
	// the stack may be ending.
	stepTime = 10 * time.Second
	// approachPause is the time between two attempts.
	approachPause = 50 * time.Millisecond
	// preparing is how long the new process may take to start what can fail, and to
	// read its configuration. Until then, the old one waits.
	preparing = time.Minute
)

// A Predecessor is the stack that runs in this network namespace and hands it over to a new
// Service. See Config.Predecessor.
type Predecessor struct {
	conn  *takeover.Conn
	claim *place.Claim
}

// Approach asks the stack that runs in this network namespace to hand over to this process.
// release is that of this process, for the log of the other one. The result is nil if no
// stack runs. Nothing changes for the other stack before Service.Assume. Errors:
// ErrCannotTakeOver if the stack is of another release, refuses, or belongs to another user.
func Approach(ctx context.Context, release string) (*Predecessor, error) {
	for end := time.Now().Add(stepTime); ; {
		p, err := approach(ctx, release)
		if !errors.Is(err, takeover.ErrRefused) || time.Now().After(end) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(approachPause):
		}
	}
}

func approach(ctx context.Context, release string) (_ *Predecessor, err error) {
	c, err := place.Dial(ctx, place.Takeover)
	if errors.Is(err, place.ErrAbsent) {
		return nil, cannotHandOver(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCannotTakeOver, err)
	}
	p := &Predecessor{conn: takeover.New(c, false)}
	defer func() {
		if err != nil {
			err = errors.Join(refusal(err), p.Close())
		}
	}()
	if err := p.conn.Send(takeover.Message{Type: takeover.Hello, Release: release}); err != nil {
		return nil, err
	}
	m, err := p.conn.Expect(takeover.Offer, stepTime)
	if err != nil {
		return nil, err
	}
	if len(m.Files) != 1 {
		m.Close()
		return nil, fmt.Errorf("%w: %d files", takeover.ErrMalformed, len(m.Files))
	}
	p.claim, err = place.Inherit(m.Files[0])
	return p, err
}

// errOld is the error of a stack that does not know the takeover.
var errOld = fmt.Errorf("%w: it is of a release of smcr that cannot hand over: stop it first, which ends its connections", ErrCannotTakeOver)

// cannotHandOver returns errOld if a stack runs that does not have the socket for a
// takeover.
func cannotHandOver(ctx context.Context) error {
	c, err := place.Dial(ctx, place.Commands)
	if err != nil {
		return nil // there is none, or place.Take reports what is wrong
	}
	return errors.Join(errOld, c.Close())
}

// refusal adds to an error of the other process what it means.
func refusal(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: %w", ErrPredecessorEnded, err)
	default:
		return fmt.Errorf("%w: %w", ErrCannotTakeOver, err)
	}
}

// Close ends the takeover. If it is not complete, the other stack continues as before.
func (p *Predecessor) Close() error {
	err := p.conn.Close()
	if p.claim != nil {
		err = errors.Join(err, p.claim.Close())
	}
	return err
}

// Freeze tells the predecessor that this process is ready. From now on, the predecessor has
// changes by commands wait, so the caller can read the configuration and the state. The
// counters go on from those of the predecessor. Errors: ErrPredecessorEnded,
// ErrCannotTakeOver.
func (s *Service) Freeze() error {
	p := s.cfg.Predecessor
	if err := p.conn.Send(takeover.Message{Type: takeover.Ready}); err != nil {
		return refusal(err)
	}
	for {
		m, err := p.conn.Receive(stepTime)
		if err != nil {
			return refusal(err)
		}
		switch m.Type {
		case takeover.Sockets:
			inherit(&m, s.cfg.RoCE)
		case takeover.Frozen:
			m.Close()
			s.history.receive(countsIn(&m))
			s.in.Recall(knownIn(&m))
			s.boundary.tellPlaces()
			return nil
		default:
			m.Close()
			return refusal(fmt.Errorf("%w: %v %s", takeover.ErrMalformed, m.Type, m.Text))
		}
	}
}

// inherit passes the UDP sockets in m to the RoCE devices, if there are any.
func inherit(m *takeover.Message, roce *softroce.Provider) {
	defer m.Close() // those that no group names
	var all []softroce.Receivers
	for _, g := range m.Groups {
		if g.Files < 0 || g.Files > len(m.Files) {
			break
		}
		all = append(all, softroce.Receivers{Index: g.Index, IPv6: g.IPv6, Files: m.Files[:g.Files:g.Files]})
		m.Files = m.Files[g.Files:]
	}
	if roce != nil {
		roce.Inherit(all)
		return
	}
	for _, r := range all {
		_ = r.Close()
	}
}

// toHandOver returns hosts that are known as another process gets them.
func toHandOver(known []inside.Known) (all []takeover.Known) {
	for _, k := range known {
		h := takeover.Known{Host: k.Host, Age: int64(k.Age / time.Second)}
		if mac, ok := k.Origin.Neighbour(); ok {
			h.MAC = mac[:]
		}
		all = append(all, h)
	}
	return all
}

// knownIn is the inverse of toHandOver. What is no host is left out: then it is a stranger.
func knownIn(m *takeover.Message) (all []inside.Known) {
	for _, h := range m.Known {
		if !h.Host.IsValid() || h.Age < 0 || h.Age > int64(math.MaxInt64/time.Second) {
			continue
		}
		k := inside.Known{Host: h.Host, Origin: quota.OriginOfNetwork(h.Host), Age: time.Duration(h.Age) * time.Second}
		if len(h.MAC) == 6 {
			k.Origin = quota.OriginOfNeighbour([6]byte(h.MAC))
		}
		all = append(all, k)
	}
	return all
}

func countsIn(m *takeover.Message) (c counts) {
	if m.Stats != nil {
		c.stats = *m.Stats
	}
	if m.Fallbacks != nil {
		c.fallbacks = *m.Fallbacks
	}
	return c
}

// Assume makes this service the stack of the network namespace: commands find it from now on, and the predecessor has no new connections. Errors: ErrPredecessorEnded,
// ErrCannotTakeOver. After an error the caller must end the service with Run and a context
// that has ended.
func (s *Service) Assume() error {
	p := s.cfg.Predecessor
	if err := p.conn.Send(takeover.Message{Type: takeover.Commit}); err != nil {
		return refusal(err)
	}
	if _, err := p.conn.Expect(takeover.Done, stepTime); err != nil {
		return refusal(err)
	}
	s.boundary.takeOver()
	if err := s.claim.Publish(); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	s.boundary.found()
	_ = p.conn.Close()
	return nil
}
