// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/place"
	"smcr/userstack/internal/rights"
)

// ErrServiceGone means that the service ended or can no longer be reached:
// programs go on with plain TCP.
var ErrServiceGone = errors.New("broker: the stack has ended")

// Client is the launcher's half: one session with a service.
type Client struct {
	t    *transport
	done chan struct{}
	dead chan struct{}
	stop context.CancelFunc // ends the wait for dead
	wg   sync.WaitGroup

	byOption   bool          // see ByOption
	local      bool          // see Local
	handedOver chan struct{} // see HandedOver

	mu      sync.Mutex
	leaving bool // see Leave
	err     error
	seq     uint32
	nextID  uint64
	results map[uint32]chan Message
	conns   map[uint64]*ClientConn
}

// DialStack opens a session with the stack of this network namespace, if it belongs
// to root or to the caller's user: see package place. command is the command line of
// the program that is launched, for display. flags are those of TypeHello.
func DialStack(ctx context.Context, command string, flags ...Flags) (*Client, error) {
	c, err := place.Dial(ctx, place.Launchers)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	return NewClient(ctx, c, command, flags...)
}

// NewClient opens a session on c, of network "unixpacket". It owns c, and closes it if it
// fails. command and flags are as in DialStack.
func NewClient(ctx context.Context, c *net.UnixConn, command string, flags ...Flags) (*Client, error) {
	cl := newClient(newTransport(c))
	if err := cl.hello(ctx, command, flags); err != nil {
		_ = c.Close()
		return nil, err
	}
	cl.start()
	return cl, nil
}

func newClient(t *transport) *Client {
	return &Client{
		t: t, done: make(chan struct{}),
		results: make(map[uint32]chan Message), conns: make(map[uint64]*ClientConn),
		dead: make(chan struct{}), handedOver: make(chan struct{}),
	}
}

// start begins to receive the messages of the service.
func (cl *Client) start() {
	pidfd := peerPidfd(cl.t.c)
	dctx, stop := context.WithCancel(context.Background())
	cl.stop = stop
	// No guard: each message has one.
	cl.wg.Go(func() {
		defer pidfd.Close()
		cl.receive()
		if awaitDeath(dctx, pidfd) {
			close(cl.dead)
		}
	})
}

func (cl *Client) hello(ctx context.Context, command string, flags []Flags) error {
	deadline := time.Now().Add(welcomeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := cl.t.c.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	// A service that refuses the session for lack of resources answers before it reads,
	// and closes the socket. The first call after that reports the close, and the answer
	// can still be read.
	serr := cl.t.send(newHello(command, flags), -1)
	if serr != nil && !closedFirst(serr) {
		return serr
	}
	m, d, err := cl.t.receive()
	if closedFirst(err) {
		closed := err
		if m, d, err = cl.t.receive(); errors.Is(err, io.EOF) {
			err = closed
		}
	}
	cl.t.closeNotSockets()
	if err != nil && serr != nil {
		err = serr
	}
	if d != nil {
		_ = d.Close()
	}
	switch {
	case err != nil:
		return fmt.Errorf("broker: waiting for welcome: %w", err)
	case m.Type != TypeWelcome:
		return fmt.Errorf("%w: %v instead of welcome", ErrMalformed, m.Type)
	case m.Size != Version:
		return &VersionError{Launcher: Version, Stack: m.Size}
	case m.Errno != 0:
		return fmt.Errorf("broker: the stack refused: %s: %w", m.Text, syscall.Errno(m.Errno))
	}
	if err := cl.t.c.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	cl.byOption, cl.local = m.Flags&FlagByOption != 0, m.Flags&FlagLocal != 0
	return nil
}

// closedFirst reports whether err means that the other end of the socket was closed. There
// may still be a message to read.
func closedFirst(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// Done is closed when the session is over.
func (cl *Client) Done() <-chan struct{} { return cl.done }

// Dead returns a channel that is closed when the session is over and the process of the
// service has ended: nobody uses the descriptors any more that the service got. The channel
// stays open if this cannot be found out, or does not happen within 10 seconds.
func (cl *Client) Dead() <-chan struct{} { return cl.dead }

// Err returns why the session is over, an error wrapping ErrServiceGone, or
// nil while it lasts. After a panic it also wraps a *guard.Error.
func (cl *Client) Err() error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.err
}

// Close ends the session; the service resets its connections. It waits for
// the Client's goroutine.
func (cl *Client) Close() error {
	err := cl.t.c.Close()
	cl.stop()
	cl.wg.Wait()
	return err
}

// Listen announces a TCP socket that is about to listen to the service. The caller still
// owns sock. The error wraps the syscall.Errno of the service, ErrServiceGone, or is the
// cause of ctx.
func (cl *Client) Listen(ctx context.Context, sock int) error {
	_, err := cl.request(ctx, Message{Type: TypeListen}, sock)
	return err
}

// Connect asks the service to connect sock, which the caller still owns. The Events of the
// connection report the progress. The error wraps ErrServiceGone, or is that of a
// descriptor that cannot be passed.
func (cl *Client) Connect(sock int, req ConnectRequest) (*ClientConn, error) {
	m := Message{Type: TypeConnect, Remote: req.Remote}
	if req.Nonblock {
		m.Flags = FlagNonblock
	}
	return cl.open(&m, sock)
}

// Accept offers the accepted socket sock to the service. The caller still owns sock. The
// first event is EventNotCandidate, EventTaken or EventLocal. Errors: see Connect.
func (cl *Client) Accept(sock int, local, remote netip.AddrPort) (*ClientConn, error) {
	return cl.open(&Message{Type: TypeAccept, Local: local, Remote: remote}, sock)
}

func (cl *Client) open(m *Message, sock int) (*ClientConn, error) {
	c := &ClientConn{cl: cl, events: make(chan Event, maxEvents)}
	cl.mu.Lock()
	if err := cl.refusal(); err != nil {
		cl.mu.Unlock()
		return nil, err
	}
	cl.nextID++
	c.id = cl.nextID
	cl.conns[c.id] = c
	cl.mu.Unlock()
	m.Conn = c.id
	if err := cl.send(m, sock); err != nil {
		return nil, err
	}
	return c, nil
}

// refusal returns why the session takes no new connection, or nil. cl.mu is held.
func (cl *Client) refusal() error {
	if cl.leaving {
		return ErrLeft
	}
	return cl.err
}

func (cl *Client) request(ctx context.Context, m Message, sock int) (Message, error) {
	ch := make(chan Message, 1)
	cl.mu.Lock()
	err := cl.err
	if m.Type == TypeListen {
		err = cl.refusal()
	}
	if err != nil {
		cl.mu.Unlock()
		return Message{}, err
	}
	if cl.seq++; cl.seq == 0 {
		cl.seq = 1 // 0 is no request
	}
	m.Seq = cl.seq
	cl.results[m.Seq] = ch
	cl.mu.Unlock()
	defer func() {
		cl.mu.Lock()
		delete(cl.results, m.Seq)
		cl.mu.Unlock()
		cl.endIfIdle()
	}()
	if err := cl.send(&m, sock); err != nil {
		return Message{}, err
	}
	select {
	case r := <-ch:
		if r.Errno != 0 {
			return r, fmt.Errorf("broker: %v: %s: %w", m.Type, r.Text, syscall.Errno(r.Errno))
		}
		return r, nil
	case <-cl.done:
		return Message{}, cl.Err()
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}

// send sends m. If the service cannot receive it, the session ends. If only the descriptor
// cannot be passed, the session continues.
func (cl *Client) send(m *Message, fd int) error {
	err := cl.t.send(m, fd)
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.ETOOMANYREFS) || errors.Is(err, unix.EBADF) {
		cl.mu.Lock()
		delete(cl.conns, m.Conn)
		cl.mu.Unlock()
		return err
	}
	cl.fail(err)
	return cl.Err()
}

func (cl *Client) fail(err error) {
	cl.mu.Lock()
	if cl.err == nil {
		cl.err = fmt.Errorf("%w: %w", ErrServiceGone, err)
	}
	cl.mu.Unlock()
	_ = cl.t.c.Close()
}

func (cl *Client) receive() {
	var err error
	for err == nil {
		var m Message
		var d *Descriptor
		m, d, err = cl.t.receive()
		if err != nil && !(errors.Is(err, errDescriptorLost) && m.Type == TypeLocal) {
			break
		}
		if fell := (*guard.Guard)(nil).Do("a message of the stack", func() { err = cl.handle(m, d) }); fell != nil {
			err = fell
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it closed the session")
	}
	cl.fail(err)
	cl.t.closeNotSockets()
	cl.mu.Lock()
	conns := cl.conns
	cl.conns = nil
	cl.mu.Unlock()
	for _, c := range conns {
		close(c.events)
	}
	close(cl.done)
}

// handle acts on one message. It owns d, which may be nil.
func (cl *Client) handle(m Message, d *Descriptor) (err error) {
	passed := false
	defer func() {
		if d != nil && !passed {
			_ = d.Close()
		}
	}()
	if m.Type == TypeResult {
		cl.mu.Lock()
		ch := cl.results[m.Seq]
		delete(cl.results, m.Seq)
		cl.mu.Unlock()
		if ch != nil {
			ch <- m
		}
		return nil
	}
	if m.Type == TypeHandedOver {
		select {
		case <-cl.handedOver:
			return fmt.Errorf("%w: %v twice", ErrMalformed, m.Type)
		default:
			close(cl.handedOver)
		}
		return nil
	}
	k, ok := eventKinds[m.Type]
	if !ok {
		return fmt.Errorf("%w: %v from the service", ErrMalformed, m.Type)
	}
	cl.mu.Lock()
	c := cl.conns[m.Conn]
	if m.Type == TypeClosed {
		delete(cl.conns, m.Conn)
	}
	cl.mu.Unlock()
	if c == nil {
		return nil
	}
	ev := Event{Kind: k, PeerSMC: m.Flags&FlagPeerSMC != 0, Errno: syscall.Errno(m.Errno), Mode: m.Mode, Text: m.Text, End: d}
	if m.Type == TypeNotCandidate || m.Type == TypeReady || m.Type == TypeEstablished {
		ev.Reason, ev.PeerReason = uint32(m.Level), uint32(m.Name)
	}
	if m.Type == TypeClosed && len(m.Value) == 8 {
		ev.Carried = binary.LittleEndian.Uint64(m.Value)
	}
	select {
	case c.events <- ev:
		passed = true
	default:
		return fmt.Errorf("%w: more than %d events on connection %d", ErrMalformed, maxEvents, m.Conn)
	}
	if m.Type == TypeClosed {
		close(c.events)
		cl.endIfIdle()
	}
	return nil
}

// EventKind is the kind of an event of a connection.
type EventKind uint8

// Kinds of event; the protocol in the package's description gives the order.
const (
	// EventNotCandidate: the connection is native; Text is the reason. If Errno
	// is set, the service has not read from the socket. If such a connection
	// was accepted and the peer announced SMC, it cannot be used.
	EventNotCandidate EventKind = iota + 1
	// EventFailed: the connection could not be made; Errno, Text.
	EventFailed
	// EventEstablished: the TCP connection is up; PeerSMC. Without it, Text is the reason
	// if it is not simply that the peer does not speak SMC.
	EventEstablished
	// EventTaken: the service takes over the accepted connection.
	EventTaken
	// EventReady: the handshake is over; Mode, and Text when it is ModeTCP.
	EventReady
	// EventBroken: the connection ends abortively with Errno; the launcher has
	// to answer with BrokenDone.
	EventBroken
	// EventClosed is the last event. Errno is not 0 if the service gave up the
	// connection before it received the end of the pair: nobody reads from this end,
	// even if the launcher has sent it.
	EventClosed
	// EventDropUrgent: another urgent byte is about to be put into the pair; the
	// launcher has to answer with UrgentDropped.
	EventDropUrgent
	// EventLocal: the peer is a program of this host. End must become the
	// program's descriptor; it is nil if this process could not receive it. On
	// a connection that the program opens, the launcher must answer with
	// Proceed if the program has End, and otherwise with Release. On a connection that
	// the program accepts, Errno is not 0 if the peer has reset it already: then the
	// program reads ECONNRESET from End.
	EventLocal
)

var eventKinds = map[Type]EventKind{
	TypeNotCandidate: EventNotCandidate, TypeFailed: EventFailed, TypeEstablished: EventEstablished,
	TypeTaken: EventTaken, TypeReady: EventReady, TypeBroken: EventBroken, TypeClosed: EventClosed,
	TypeDropUrgent: EventDropUrgent, TypeLocal: EventLocal,
}

// maxEvents is the largest number of events of one connection that any order of calls on a
// Conn can cause.
const maxEvents = 8

// Event is one step in the life of a connection.
type Event struct {
	Kind    EventKind
	PeerSMC bool
	Errno   syscall.Errno
	Mode    Mode
	Text    string
	End     *Descriptor // EventLocal: the receiver's to close
	// Reason is the number of the reason why the connection stays TCP, with
	// EventNotCandidate, EventReady, and EventEstablished without PeerSMC if it has a Text. PeerReason is the reason of the peer if the peer
	// declined. See Conn.SetReason. 0 means that no reason is known.
	Reason, PeerReason uint32
	// Carried is how many bytes the connection carried over SMC, in both directions
	// together. It is 0 if the event is not EventClosed.
	Carried uint64
}

// A ClientConn is the launcher's view of one connection.
type ClientConn struct {
	cl     *Client
	id     uint64
	events chan Event
}

// ID is the connection's number, unique within the session.
func (c *ClientConn) ID() uint64 { return c.id }

// Events returns the channel of the connection's events. Its buffer has room for all of
// them. The channel is closed after EventClosed, or when the session ends.
func (c *ClientConn) Events() <-chan Event { return c.events }

// Proceed answers EventEstablished with PeerSMC, and EventLocal.
func (c *ClientConn) Proceed() error { return c.send(TypeProceed, -1) }

// Attach answers EventReady or EventTaken with the service's end of the socketpair. The
// caller still owns end. If Attach fails, the service does not get the end.
func (c *ClientConn) Attach(end int) error { return c.send(TypeAttach, end) }

// Release answers EventReady of ModeTCP, and EventLocal: the program has its TCP
// socket.
func (c *ClientConn) Release() error { return c.send(TypeRelease, -1) }

// Cancel gives up the connection before Attach or Release.
func (c *ClientConn) Cancel() error { return c.send(TypeCancel, -1) }

// BrokenDone answers EventBroken.
func (c *ClientConn) BrokenDone() error { return c.send(TypeBrokenDone, -1) }

// UrgentDropped answers EventDropUrgent.
func (c *ClientConn) UrgentDropped() error { return c.send(TypeUrgentDropped, -1) }

func (c *ClientConn) send(t Type, fd int) error {
	return c.cl.send(&Message{Type: t, Conn: c.id}, fd)
}

// SetOption sets a socket option on the connection's TCP socket with the
// program's rights. Errors wrap a syscall.Errno, or ErrServiceGone.
func (c *ClientConn) SetOption(ctx context.Context, r rights.Rights, level, name int, value []byte) error {
	_, err := c.cl.request(ctx, Message{Type: TypeSetOption, Conn: c.id, Level: int32(level), Name: int32(name), Value: value, Rights: r}, -1)
	return err
}

// PassOption asks the service to set a socket option, and does not wait. Later
// calls that set or read options come after it. A failure is not reported. The
// error wraps ErrServiceGone.
func (c *ClientConn) PassOption(level, name int, value []byte) error {
	return c.cl.send(&Message{Type: TypeSetOption, Conn: c.id, Level: int32(level), Name: int32(name), Value: value}, -1)
}

// GetOption reads a socket option of at most size bytes (MaxValue at most)
// of the connection's TCP socket with the program's rights.
func (c *ClientConn) GetOption(ctx context.Context, r rights.Rights, level, name, size int) ([]byte, error) {
	size = min(size, MaxValue)
	m, err := c.cl.request(ctx, Message{Type: TypeGetOption, Conn: c.id, Level: int32(level), Name: int32(name), Size: uint32(size), Rights: r}, -1)
	return m.Value, err
}
