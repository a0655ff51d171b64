// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrOrder reports a call on a Conn that does not fit what happened before,
// on this side or on the launcher's.
var ErrOrder = errors.New("broker: out of order")

// A Conn is the service's view of one connection of a launched program.
//
// For Handler.Connect the order of calls is
//
//	NotCandidate | Failed | Established(false)         and return, or
//	Established(true), then Failed                     and return, or
//	Established(true), then Ready, then [Broken]       and return, or
//	Local, then [Broken]                               and return.
//
// For Handler.Accept it is
//
//	NotCandidate | Declined | Failed                   and return, or
//	Local                                              and return, or
//	TakeOver, then Ready, then [Broken]                and return.
//
// If the handler returns without any of these calls, this counts as Failed(ECONNABORTED) or
// NotCandidate if the launcher has got no answer yet, and otherwise as an abort of the
// connection.
type Conn struct {
	ss     *session
	id     uint64
	ctx    context.Context // of the handler; kept for SetOption and GetOption
	cancel context.CancelCauseFunc

	options       queue // SetOption and GetOption
	answers       chan answer
	urgentDropped chan struct{} // answers to DropUrgent
	noAnswer      atomic.Bool   // the launcher did not answer a DropUrgent in time
	accept        bool
	kept          bool         // Keep was called
	local         atomic.Bool  // Local was called
	detoured      *Descriptor  // the first descriptor of a detour that has begun; guarded by session.mu
	detours       int          // how many descriptors for detours came; guarded by session.mu
	awaitsPair    atomic.Bool  // the launcher must send the pair, which has not come yet
	pairCame      atomic.Bool  // the message with the pair came, even if without the descriptor
	taken         atomic.Int32 // part of the user's quota, in descriptors
	data          atomic.Value
	closed        atomic.Pointer[string]
	carried       atomic.Uint64 // bytes, for the launcher

	reason, peerReason int32 // see SetReason
}

type answer struct {
	t Type
	d *Descriptor
}

// ID is the launcher's number of the connection, unique within the session.
func (c *Conn) ID() uint64 { return c.id }

// Launcher returns the launcher whose program has the connection.
func (c *Conn) Launcher() *Launcher { return c.ss.l }

// LauncherGone returns a context that ends when the launcher has ended, or the service. The
// connection goes on if the service has its end of the pair, or if its message is received: the
// program may have written its data, closed its end and ended with its launcher.
func (c *Conn) LauncherGone() context.Context { return c.ss.gone }

// SetData stores v for Data: Handler.SetOption and GetOption can get what Connect or Accept
// set up. All values of one Conn must have the same type.
func (c *Conn) SetData(v any) { c.data.Store(v) }

// Data returns the value of the last SetData, or nil.
func (c *Conn) Data() any { return c.data.Load() }

// SetReason sets the numbers that NotCandidate and Ready send as the reason why the
// connection stays TCP: reason, and the reason of the peer if the peer declined. The
// handler must call it before them.
func (c *Conn) SetReason(reason, peer uint32) { c.reason, c.peerReason = int32(reason), int32(peer) }

// NotCandidate leaves the connection to native TCP: the program's connect()
// runs as if there were no launcher, or the accepted socket is passed to it.
// The socket must be as it came (unmarked, unconnected).
func (c *Conn) NotCandidate(reason string) error {
	return c.send(&Message{Type: TypeNotCandidate, Text: plainText(reason), Level: c.reason, Name: c.peerReason})
}

// Declined is NotCandidate for an accepted connection whose peer speaks SMC: the rendezvous is
// over, and what follows is data.
func (c *Conn) Declined(reason string) error {
	return c.send(&Message{Type: TypeNotCandidate, Flags: FlagPeerSMC, Text: plainText(reason), Level: c.reason, Name: c.peerReason})
}

// Failed reports that the connection could not be made, or that an accepted one has ended.
func (c *Conn) Failed(errno syscall.Errno, reason string) error {
	return c.send(&Message{Type: TypeFailed, Errno: int32(errno), Text: plainText(reason)})
}

// Established reports that the TCP connection is up. With peerSMC false the
// socket is the program's own from here on. With peerSMC true Established
// waits until the program can no longer reach the TCP socket: only then may
// the CLC handshake begin.
func (c *Conn) Established(ctx context.Context, peerSMC bool) error {
	m := Message{Type: TypeEstablished}
	if peerSMC {
		m.Flags = FlagPeerSMC
	}
	if err := c.send(&m); err != nil || !peerSMC {
		return err
	}
	_, err := c.await(ctx, TypeProceed)
	return err
}

// EstablishedTCP is Established for a connection that stays TCP, with the reason.
func (c *Conn) EstablishedTCP(reason string) error {
	return c.send(&Message{Type: TypeEstablished, Text: plainText(reason), Level: c.reason})
}

// Again leaves a connection to native TCP after Established: the launcher must connect anew,
// because the server has taken messages of SMC for data. The socket must be unused by the
// service.
func (c *Conn) Again(reason string) error { return c.NotCandidate(reason) }

// TakeOver tells the launcher that the service takes over an accepted connection, and
// returns the service's end of the stream socketpair. The program has the other end. The
// descriptor is non-blocking, and the caller must close it. Errors: ErrOrder, the cause of
// a context, and failures to send.
func (c *Conn) TakeOver(ctx context.Context) (*Descriptor, error) {
	c.awaitsPair.Store(true)
	if err := c.send(&Message{Type: TypeTaken}); err != nil {
		return nil, err
	}
	a, err := c.await(ctx, TypeAttach)
	return a.d, err
}

// Ready ends the handshake with what carries the bytes from now on, and for
// ModeTCP the reason. On a connection that TakeOver opened it returns (nil,
// nil) at once. On one that Established opened it waits for the launcher and
// returns the service's end of the stream socketpair, empty and non-blocking
// and the caller's to close; or nil, for ModeTCP only, when the program has
// its TCP socket back and the caller has to close its own copy and return.
func (c *Conn) Ready(ctx context.Context, mode Mode, reason string) (*Descriptor, error) {
	if !c.accept {
		c.awaitsPair.Store(true)
	}
	m := Message{Type: TypeReady, Mode: mode, Text: plainText(reason)}
	if mode == ModeTCP {
		m.Level, m.Name = c.reason, c.peerReason
	}
	err := c.send(&m)
	if c.accept {
		return nil, nil // the launcher may have ended: the service has its end of the pair
	}
	if err != nil {
		return nil, err
	}
	want := []Type{TypeAttach}
	if mode == ModeTCP {
		want = append(want, TypeRelease)
	}
	a, err := c.await(ctx, want...)
	return a.d, err
}

// brokenTimeout bounds the wait for a launcher's answer to Broken. Without the answer, the
// program may see an end of file in place of a reset, so a launcher on a busy machine gets
// much time.
const brokenTimeout = 3 * time.Second

// Broken announces an abortive end: afterwards the caller closes its end of
// the pair without reading from it again, and the program sees ECONNRESET
// after what it was already sent (or errno in SO_ERROR), not an end of file.
// It tells the launcher the text of SetCloseReason, since the program may end before the connection
// does. Broken waits for the answer of the launcher, 3 seconds at most.
func (c *Conn) Broken(ctx context.Context, errno syscall.Errno) error {
	ctx, cancel := context.WithTimeout(ctx, brokenTimeout)
	defer cancel()
	m := Message{Type: TypeBroken, Errno: int32(errno)}
	if s := c.closed.Load(); s != nil {
		m.Text = *s
	}
	if err := c.send(&m); err != nil {
		return err
	}
	_, err := c.await(ctx, TypeBrokenDone)
	return err
}

// dropUrgentTimeout bounds the wait for a launcher's answer to DropUrgent.
const dropUrgentTimeout = 3 * time.Second

// DropUrgent announces that the caller is about to write another urgent byte into the pair.
// If the urgent byte before it is the next byte that the program would read, the launcher
// removes it, as TCP does (see relay.DropUrgent). DropUrgent waits for the answer of the
// launcher, 3 seconds at most. After a timeout, later calls do nothing.
func (c *Conn) DropUrgent(ctx context.Context) error {
	if c.noAnswer.Load() {
		return nil
	}
	timer := time.NewTimer(dropUrgentTimeout)
	defer timer.Stop()
	if err := c.send(&Message{Type: TypeDropUrgent}); err != nil {
		return err
	}
	select {
	case <-c.urgentDropped:
		return nil
	case <-c.ss.gone.Done():
		return context.Cause(c.ss.gone)
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		c.noAnswer.Store(true)
		return fmt.Errorf("broker: no %v from launcher %d within %v", TypeUrgentDropped, c.ss.l.PID, dropUrgentTimeout)
	}
}

// Keep lets the handler return while the connection continues. The connection, and the
// context that the handler got, end when end is called. end must be called once. Keep must
// be called by the goroutine of the handler.
func (c *Conn) Keep() (end func()) {
	c.kept = true
	c.ss.wg.Add(1)
	return func() {
		defer c.ss.wg.Done()
		c.end()
	}
}

// SetCloseReason sets the text that the launcher logs when the connection
// ends, such as why it was reset.
func (c *Conn) SetCloseReason(s string) { s = plainText(s); c.closed.Store(&s) }

// SetCarried sets how many bytes the connection carried over SMC, in both
// directions together. The launcher is told when it ends.
func (c *Conn) SetCarried(bytes uint64) { c.carried.Store(bytes) }

func (c *Conn) send(m *Message) error {
	m.Conn = c.id
	return c.ss.send(m)
}

// await returns the launcher's next answer. The error is ErrOrder if the type of the answer
// is not in want.
func (c *Conn) await(ctx context.Context, want ...Type) (answer, error) {
	timer := time.NewTimer(answerTimeout)
	defer timer.Stop()
	return c.awaitUntil(ctx, timer.C, want...)
}

// awaitUntil is await until limit, which may be nil.
func (c *Conn) awaitUntil(ctx context.Context, limit <-chan time.Time, want ...Type) (answer, error) {
	for {
		var a answer
		select {
		case a = <-c.answers:
		case <-c.ss.gone.Done():
			// An answer that the launcher sent before its end counts.
			select {
			case a = <-c.answers:
			default:
				return answer{}, context.Cause(c.ss.gone)
			}
		case <-c.ctx.Done():
			return answer{}, context.Cause(c.ctx)
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		case <-limit:
			// A process that got no processor time may have an answer as well.
			select {
			case a = <-c.answers:
				limit = nil
			default:
				return answer{}, fmt.Errorf("broker: no %v from launcher %d within %v", want[0], c.ss.l.PID, answerTimeout)
			}
		}
		if slices.Contains(want, a.t) {
			if a.t == TypeAttach || a.t == TypeRelease {
				c.awaitsPair.Store(false)
			}
			return a, nil
		}
		if a.d != nil {
			_ = a.d.Close()
		}
		if a.t == TypeBrokenDone {
			continue // late answer to a Broken that no longer waits
		}
		return answer{}, fmt.Errorf("%w: %v instead of %v", ErrOrder, a.t, want[0])
	}
}

// end removes the connection from the session and tells the launcher.
func (c *Conn) end() {
	c.cancel(nil)
	c.ss.mu.Lock()
	delete(c.ss.conns, c.id)
	former := c.detoured
	c.detoured = nil
	c.ss.mu.Unlock()
	if former != nil {
		_ = former.Close()
	}
	for {
		select {
		case a := <-c.answers:
			discard(Message{Type: a.t}, a.d)
			continue
		default:
		}
		break
	}
	c.ss.s.Quota.Give(c.ss.l.UID, int(c.taken.Swap(0)))
	m := Message{Type: TypeClosed, Conn: c.id}
	if c.awaitsPair.Load() {
		// The launcher may have sent the pair, and the program may have written data
		// into it that counts as sent.
		m.Errno = int32(syscall.ECONNRESET)
	}
	if s := c.closed.Load(); s != nil {
		m.Text = *s
	}
	if n := c.carried.Load(); n > 0 {
		m.Value = binary.LittleEndian.AppendUint64(nil, n)
	}
	c.ss.sendOrDrop(&m)
}
