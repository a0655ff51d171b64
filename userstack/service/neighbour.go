// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/place"
	"smcr/userstack/broker"
	"smcr/userstack/network"
)

// Two stacks of one machine, in different network namespaces, can connect two programs
// by a socketpair too. The client's stack offers a pair to the stack that has the
// server's address, over a socket that only root's stacks, or those of one user, can
// open:
//
//	client's stack                          server's stack
//	opOwns, remembered for a while   ->     does it have the address?
//	(the TCP connection is made, and
//	both ends announced SMC)
//	opOffer + both ends of a pair    ->     is there such a TCP connection, and has a
//	                                        program listened on the port?
//	                                 <-     yes: it waits for the program's accept();
//	                                        no: the CLC handshake begins
//	(the program gets its end)
//	local                            ->     it closes its copy of that end
//	                                 <-     taken: the program there has the other end,
//	                                        the sequence numbers of both TCP sockets
//	                                        were the same
//
// None of this depends on what the other host sends over the network. A host that
// pretends to be another one has no such socket, and no TCP connection with these
// addresses and sequence numbers.

// neighbours is what a stack knows about the other stacks of its machine.
type neighbours struct {
	claim   *place.Claim // nil: there are none
	machine [32]byte
	netns   uint64
	locator network.Locator
	local   *localTable
	log     *slog.Logger
	guard   *guard.Guard

	versions sync.Once // the log says once that another stack has another version

	mu      sync.Mutex
	owners  map[netip.Addr]ownerOfAddr
	changed time.Time // modification time of the directory when owners was emptied
	awaited map[tuple]chan struct{}
}

// ownerOfAddr is the network namespace, on this machine, that has an address.
type ownerOfAddr struct {
	netns uint64 // 0: none
	until time.Time
}

const (
	// ownerTime is how long the answers to opOwns are used. uncertainTime is how long
	// they are used if one is missing.
	ownerTime     = 5 * time.Second
	uncertainTime = time.Second
	maxOwners     = 4096
	// askTime bounds all questions about one address. After the first yes, the other
	// stacks have secondTime to answer.
	askTime    = 200 * time.Millisecond
	secondTime = 10 * time.Millisecond
	// maxQuestions is how many stacks are asked about one address at the same time.
	maxQuestions = 64
	// offerTime is how long an accepted connection waits for the offer of a stack
	// that has the client's address.
	offerTime = 500 * time.Millisecond
)

// owner returns the other network namespace that has an address, or 0.
func (x *neighbours) owner(ctx context.Context, addr netip.Addr) (netns uint64) {
	if x.claim == nil || x.locator == nil {
		return 0
	}
	addr = addr.Unmap().WithZone("")
	if addr.IsLinkLocalUnicast() {
		return 0 // of any link
	}
	changed, err := x.claim.Changed()
	if err != nil {
		return 0
	}
	x.mu.Lock()
	if !changed.Equal(x.changed) || len(x.owners) > maxOwners || x.owners == nil {
		x.owners, x.changed = map[netip.Addr]ownerOfAddr{}, changed
	}
	o, ok := x.owners[addr]
	x.mu.Unlock()
	if ok && time.Now().Before(o.until) {
		return o.netns
	}
	netns, certain := x.ask(ctx, addr)
	o = ownerOfAddr{netns, time.Now().Add(ownerTime)}
	if !certain {
		o.until = time.Now().Add(uncertainTime)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.owners != nil {
		x.owners[addr] = o
	}
	return o.netns
}

// forget makes the next connection to an address ask again.
func (x *neighbours) forget(addr netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.owners, addr.Unmap().WithZone(""))
}

// ask asks all stacks of the machine whether they have an address. If more than one
// has it, in separate networks, the result is 0. certain is false if a stack has not
// answered in time.
//
// The stacks are asked at the same time, because one that does not answer must not hide
// the others.
func (x *neighbours) ask(ctx context.Context, addr netip.Addr) (netns uint64, certain bool) {
	cookies, _, err := x.claim.Others()
	if err != nil {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	m := x.message(opOwns, tuple{server: netip.AddrPortFrom(addr, 0)})
	type answer struct {
		netns uint64
		err   error
	}
	answers := make(chan answer, len(cookies))
	turn := make(chan struct{}, maxQuestions)
	for _, cookie := range cookies {
		go func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			answers <- answer{cookie, x.question(ctx, cookie, m)}
		}()
	}
	certain = true
	var enough <-chan time.Time
	for range cookies {
		select {
		case a := <-answers:
			switch {
			case a.err != nil:
				certain = certain && (errors.Is(a.err, errRefused) || errors.Is(a.err, place.ErrAbsent))
			case netns != 0:
				return 0, true
			default:
				netns = a.netns
				enough = time.After(secondTime)
			}
		case <-enough:
			return netns, true
		case <-ctx.Done():
			return netns, false
		}
	}
	return netns, certain
}

func (x *neighbours) message(op neighbourOp, name tuple) *neighbourMessage {
	return &neighbourMessage{op: op, machine: x.machine, netns: x.netns, name: name}
}

// errRefused means that another stack has answered no.
var errRefused = errors.New("service: another stack of this machine refused")

// question asks one stack and returns nil if the answer is yes.
func (x *neighbours) question(ctx context.Context, netns uint64, m *neighbourMessage) error {
	u, err := x.converse(ctx, netns, m)
	if err != nil {
		return err
	}
	return u.Close()
}

// converse asks one stack and returns the connection if the answer is yes. It returns
// when ctx ends.
func (x *neighbours) converse(ctx context.Context, netns uint64, m *neighbourMessage, ends ...*broker.Descriptor) (*net.UnixConn, error) {
	u, err := x.claim.DialOther(ctx, netns)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = u.Close() })
	if err = sendNeighbour(u, m, ends...); err == nil {
		var word byte
		if word, err = receiveWord(u, m.op.answerTime()); err == nil && word != wordYes {
			err = errRefused
		}
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	return u, nil
}

// remoteSide is the other side of a localConn, at another stack.
type remoteSide struct {
	netns uint64
	talk  *net.UnixConn // nil at the server's side
	seqs  tcpSeqs       // at the server's side: those of the client
	uid   uint32        // at the server's side: the user of the client
	words chan byte     // the last word of the server's side; closed at the end
}

// offer offers the connection of a program, after its TCP connection is made, to
// another stack of the machine. It returns the localConn, or nil.
func (n *neighbours) offer(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, remote netip.AddrPort) *localConn {
	if n.local.off {
		return nil
	}
	netns := n.owner(ctx, remote.Addr())
	if netns == 0 {
		return nil
	}
	f, err := n.offerTo(ctx, c, sock, netns)
	if err != nil {
		n.log.Debug("connection is not local", "remote", remote, "err", err)
		if errors.Is(err, place.ErrAbsent) {
			n.forget(remote.Addr())
		}
		return nil
	}
	return f
}

func (n *neighbours) offerTo(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, netns uint64) (_ *localConn, err error) {
	m := n.message(opOffer, tuple{})
	m.uid = c.Launcher().UID
	if err := sock.Control(func(fd int) error {
		if err := joinable(fd); err != nil {
			return err
		}
		if err := idleTCP(fd); err != nil {
			return err
		}
		client, err := socketAddr(unix.Getsockname(fd))
		if err != nil {
			return err
		}
		server, err := socketAddr(unix.Getpeername(fd))
		if err != nil {
			return err
		}
		m.name = tuple{unzoned(client), unzoned(server)}
		m.seqs, err = sequences(fd)
		return err
	}); err != nil {
		return nil, err
	}
	p, q, sealed, err := localPair()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = p.Close()
			_ = q.Close()
		}
	}()
	if !sealed {
		return nil, fmt.Errorf("%w: no SO_PASSRIGHTS", errNotLocal)
	}
	f := n.local.newLocalConn(c, sock, m.name.server.Port(), p, q, sealed)
	f.name, f.missing = m.name, 1
	f.remote = &remoteSide{netns: netns, words: make(chan byte, 4)}
	if err := n.local.addRemote(f); err != nil {
		return nil, err
	}
	if f.remote.talk, err = n.converse(ctx, netns, m, p, q); err != nil {
		n.local.withdraw(f)
		return nil, err
	}
	go n.follow(f)
	return f, nil
}

// follow runs the client's side of a conversation. It returns when it has reported
// the client's result, and the other side has reported the result of the server's end.
func (n *neighbours) follow(f *localConn) {
	a := f.remote
	var wg sync.WaitGroup
	wg.Go(func() {
		<-f.finished
		a.tell(n.local.outcome(f))
	})
	wg.Go(func() {
		defer close(a.words)
		for {
			word, err := receiveWord(a.talk, 0)
			if err != nil {
				return
			}
			switch word {
			case wordTaken:
				n.local.taken(f)
			case wordWithdrawn:
				close(f.otherProcess)
			}
			a.words <- word
			if word == wordTaken || word == wordWithdrawn {
				return
			}
		}
	})
	wg.Wait()
	_ = a.talk.Close()
}

// tell reports the result of a localConn to the server's stack.
func (a *remoteSide) tell(result outcome) {
	switch result {
	case outcomeLocal:
		_ = sendWord(a.talk, wordLocal)
	case outcomeTCP:
		_ = sendWord(a.talk, wordTCP)
	default:
		_ = a.talk.Close()
	}
}

// withdrawRemote asks the server's stack to give back a localConn. It reports whether
// no program there has it or will get it.
func (f *localConn) withdrawRemote() bool {
	_ = sendWord(f.remote.talk, wordWithdraw)
	timer := time.NewTimer(neighbourTime)
	defer timer.Stop()
	select {
	case word, ok := <-f.remote.words:
		return !ok || word != wordTaken // !ok: the stack has ended and gave no end away
	case <-timer.C:
		_ = f.remote.talk.Close()
		return true
	}
}

// listen opens the socket for the other stacks of the machine. Without it, programs of
// different network namespaces use RoCE. With --no-local there is none, and l is nil.
func (n *neighbours) listen(claim *place.Claim, netns uint64, locator network.Locator) (l *net.UnixListener, err error) {
	if n.local.off {
		return nil, nil
	}
	if n.machine, err = machineID(); err != nil {
		return nil, err
	}
	if l, err = claim.Listen(place.Stacks); err != nil {
		return nil, err
	}
	n.claim, n.netns, n.locator = claim, netns, locator
	return l, nil
}

// tell has op carried out at the other side of a localConn than x, and waits for it.
func (n *neighbours) tell(x *localSide, op neighbourOp) {
	ctx := context.Background()
	if x.peer.carryOut(ctx, op) || x.f.remote == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, op.answerTime())
	defer cancel()
	if err := n.question(ctx, x.f.remote.netns, n.message(op, x.f.name)); err != nil {
		n.log.Debug("the other side of a local connection was not told", "server", x.f.name.server, "err", err)
	}
}
