// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// serve answers the other stacks of the machine until l is closed.
func (n *neighbours) serve(ctx context.Context, l *net.UnixListener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		u, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // for example, no free descriptors
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err := n.claim.CheckPeer(u); err != nil {
			n.log.Warn("another stack refused", "err", err)
			_ = u.Close()
			continue
		}
		wg.Go(func() {
			defer u.Close()
			stop := context.AfterFunc(ctx, func() { _ = u.Close() })
			defer stop()
			_ = n.guard.Do("a conversation with another stack", func() { n.answer(ctx, u) })
		})
	}
}

// answer answers one message and runs the conversation that follows.
func (n *neighbours) answer(ctx context.Context, u *net.UnixConn) {
	if err := u.SetReadDeadline(time.Now().Add(neighbourTime)); err != nil {
		return
	}
	m, ends, err := receiveNeighbour(u)
	kept := false
	defer func() {
		if !kept {
			for _, d := range ends {
				_ = d.Close()
			}
		}
	}()
	if errors.Is(err, errNeighbourVersion) {
		n.versions.Do(func() {
			n.log.Warn("connections with programs of another network namespace use RoCE: restart the older stack", "err", err)
		})
	}
	if err != nil || n.local.off || m.machine != n.machine || n.locator == nil || len(ends) != 0 && (m.op != opOffer || len(ends) != 2) {
		_ = sendWord(u, wordNo)
		return
	}
	switch m.op {
	case opOwns:
		if !n.locator.Owns(m.name.server.Addr()) || m.name.server.Addr().IsLoopback() {
			_ = sendWord(u, wordNo)
			return
		}
		_ = sendWord(u, wordYes)
	case opOffer:
		if len(ends) != 2 {
			_ = sendWord(u, wordNo)
			return
		}
		f, err := n.offered(&m, ends[0], ends[1])
		if err != nil {
			n.log.Debug("connection is not local", "client", m.name.client, "err", err)
			n.came(m.name)
			_ = sendWord(u, wordNo)
			return
		}
		kept = true
		n.host(ctx, u, f)
	case opBroken, opDropUrgent:
		if x := n.local.sideFacing(m.netns, m.name); x != nil {
			x.carryOut(ctx, m.op)
		}
		_ = sendWord(u, wordYes)
	}
}

// offered makes a localConn from an offer.
func (n *neighbours) offered(m *neighbourMessage, p, q *broker.Descriptor) (*localConn, error) {
	if !n.local.hasListener(m.name.server.Port(), nil) {
		return nil, errNoProgram
	}
	if _, ok, err := n.locator.Finds(m.name.server, m.name.client); err != nil || !ok {
		return nil, errors.Join(errNotIdle, err)
	}
	f := n.local.newLocalConn(nil, nil, m.name.server.Port(), p, q, true)
	f.name, f.missing = m.name, 1
	f.remote = &remoteSide{netns: m.netns, seqs: m.seqs, uid: m.uid}
	if err := n.local.addRemote(f); err != nil {
		return nil, err
	}
	return f, nil
}

// host runs the server's side of a conversation: it reports the result of the
// server's end to the client's stack, and receives the result of the client, until
// both are known.
func (n *neighbours) host(ctx context.Context, u *net.UnixConn, f *localConn) {
	words := make(chan byte)
	over := make(chan struct{})
	defer close(over)
	go n.guard.Func("a conversation with another stack", func() {
		defer close(words)
		for {
			word, err := receiveWord(u, 0)
			if err != nil {
				return
			}
			select {
			case words <- word:
			case <-over:
				return
			}
		}
	})()
	// This comes before the answer, so that an accept that waits finds the localConn.
	n.came(f.name)
	if sendWord(u, wordYes) != nil {
		n.local.finish(f, outcomeClosed)
		return
	}
	taken, landed := f.taken, f.finished
	look := newAcceptCheck(n.locator, n.local, f)
	due := look.due()
	for taken != nil || landed != nil {
		select {
		case <-taken:
			taken = nil
			_ = sendWord(u, wordTaken)
		case <-landed:
			landed = nil
			if n.local.outcome(f) != outcomeLocal && !n.local.claimed(f) {
				return
			}
		case word, ok := <-words:
			switch {
			case !ok:
				// After the client has its end, the offer remains valid without the client's stack.
				n.local.finish(f, outcomeClosed)
				words = nil
			case word == wordLocal:
				n.local.finish(f, outcomeLocal)
			case word == wordTCP:
				n.local.finish(f, outcomeTCP)
			case word == wordWithdraw && n.giveBack(u, f):
				return
			}
		case <-due:
			if taken != nil && look.elsewhere() && n.giveBack(u, f) {
				return
			}
			due = look.due()
		case <-ctx.Done():
			n.giveBack(u, f)
			return
		}
	}
}

// giveBack withdraws a localConn, and reports false if it was already claimed.
func (n *neighbours) giveBack(u *net.UnixConn, f *localConn) bool {
	if !n.local.giveBack(f) {
		return false
	}
	_ = f.p.Close()
	_ = f.q.Close()
	_ = sendWord(u, wordWithdrawn)
	return true
}

// expect calls claim for an accepted connection whose client announced SMC. If another
// stack of the machine has the address of the client, it waits for the offer of that
// stack.
func (n *neighbours) expect(ctx context.Context, c *broker.Conn, fd int) (*localConn, error) {
	client, err := socketAddr(unix.Getpeername(fd))
	if err != nil {
		return nil, nil
	}
	server, err := socketAddr(unix.Getsockname(fd))
	if err != nil {
		return nil, nil
	}
	if n.local.off || n.owner(ctx, client.Addr()) == 0 {
		return nil, nil
	}
	name := tuple{unzoned(client), unzoned(server)}
	ch := make(chan struct{})
	n.mu.Lock()
	if n.awaited == nil {
		n.awaited = map[tuple]chan struct{}{}
	}
	n.awaited[name] = ch
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.awaited[name] == ch {
			delete(n.awaited, name)
		}
	}()
	if f, err := n.local.claim(fd, c.Launcher().UID); f != nil || err != nil { // the offer has come
		return f, err
	}
	timer := time.NewTimer(offerTime)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
	case <-ctx.Done():
	}
	return n.local.claim(fd, c.Launcher().UID)
}

// came wakes the goroutine that waits for an offer that has come or was refused.
func (x *neighbours) came(name tuple) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if ch := x.awaited[name]; ch != nil {
		delete(x.awaited, name)
		close(ch)
	}
}
