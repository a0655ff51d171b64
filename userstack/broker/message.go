// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"smcr/userstack/internal/rights"
)

// Sizes in bytes.
const (
	headerLen = 36
	addrLen   = 24

	// MaxText is the largest length of Message.Text in bytes.
	MaxText = 512
	// MaxValue is the largest length of Message.Value in bytes: the longest socket
	// option that a program may set or read through the service.
	MaxValue = 2048

	minMessage = headerLen + 2*addrLen
	rightsLen  = 8
	// MaxMessage is the size of the longest message.
	MaxMessage = minMessage + MaxText + MaxValue + rightsLen
)

// ErrMalformed reports a message that does not follow the format.
var ErrMalformed = errors.New("broker: malformed message")

// Type is the kind of a message.
type Type uint8

// Types of message. Those from the launcher come first.
const (
	// TypeHello opens the session: Size is Version, Errno the launcher's
	// process id, Text the program's command line; FlagLocal.
	TypeHello Type = iota + 1
	// TypeListen passes a socket about to listen; answered by TypeResult. With Level 1 it
	// passes one that listens already: see Adopter.
	TypeListen
	// TypeConnect passes an unconnected socket and its Remote.
	TypeConnect
	// TypeAccept passes an accepted socket.
	TypeAccept
	// TypeProceed allows the CLC handshake to begin.
	TypeProceed
	// TypeAttach passes the service's end of the pair.
	TypeAttach
	// TypeRelease tells that the program has its TCP socket back.
	TypeRelease
	// TypeCancel tells that the program's side of the connection is gone.
	TypeCancel
	// TypeSetOption sets a socket option: Level, Name, Value and Rights. TypeResult
	// answers it unless its Seq is 0. The options of one connection are set and read
	// in the order of the messages.
	TypeSetOption
	// TypeGetOption reads a socket option: Level, Name, Size and Rights. TypeResult
	// answers it.
	TypeGetOption
	// TypeBrokenDone answers TypeBroken.
	TypeBrokenDone
	// TypeUrgentDropped answers TypeDropUrgent.
	TypeUrgentDropped
	// TypeNote tells of connections that the launcher left to TCP: Value is of
	// AppendNotes.
	TypeNote
	// TypeDetour passes the end that TypeLocal gave, then the service's end of the
	// pair that the program has instead.
	TypeDetour

	// TypeWelcome answers TypeHello: Size is Version; FlagByOption, FlagLocal.
	TypeWelcome Type = iota + 50
	// TypeResult answers a request of the same Seq: Errno, Value.
	TypeResult
	// TypeNotCandidate tells that the connection stays native. Text is the reason. Level
	// is the number of the reason, and Name the number of the peer's reason if the peer
	// declined. With an Errno the service has not looked at the connection. After
	// TypeEstablished the launcher must connect anew, without the service.
	TypeNotCandidate
	// TypeFailed ends a connection attempt with Errno.
	TypeFailed
	// TypeEstablished tells that the TCP connection is up; FlagPeerSMC, or the reason in
	// Text and Level as with TypeNotCandidate.
	TypeEstablished
	// TypeTaken tells that the service takes over the accepted connection.
	TypeTaken
	// TypeReady ends the CLC handshake: Mode and, if it is not SMC, the reason in Text,
	// Level and Name as with TypeNotCandidate.
	TypeReady
	// TypeBroken announces an abortive end with Errno.
	TypeBroken
	// TypeClosed is the last message about a connection; Text is for the log. With an
	// Errno the service gave up the connection before the pair came. Value, if not
	// empty, is the number of bytes that the connection carried over SMC in both
	// directions: 8 bytes, little endian.
	TypeClosed
	// TypeDropUrgent tells that another urgent byte is about to be put into the
	// pair.
	TypeDropUrgent
	// TypeLocal passes one end of the pair whose other end the program at the
	// peer has: see ModeLocal. With an Errno that program has reset the connection.
	TypeLocal
	// TypeHandedOver tells that another process is the stack now. This one keeps the
	// connections that it has.
	TypeHandedOver
)

var typeNames = map[Type]string{
	TypeHello: "hello", TypeListen: "listen", TypeConnect: "connect", TypeAccept: "accept",
	TypeProceed: "proceed", TypeAttach: "attach", TypeRelease: "release", TypeCancel: "cancel",
	TypeSetOption: "set-option", TypeGetOption: "get-option", TypeBrokenDone: "broken-done", TypeUrgentDropped: "urgent-dropped",
	TypeNote:    "note",
	TypeWelcome: "welcome", TypeResult: "result", TypeNotCandidate: "not-candidate",
	TypeFailed: "failed", TypeEstablished: "established", TypeTaken: "taken", TypeReady: "ready",
	TypeBroken: "broken", TypeClosed: "closed", TypeDropUrgent: "drop-urgent",
	TypeLocal: "local", TypeDetour: "detour", TypeHandedOver: "handed-over",
}

// String returns the type's name in lower case.
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return "type " + strconv.Itoa(int(t))
}

// carriesSocket reports whether a message of the type comes with exactly one
// descriptor; all others come with none.
func (t Type) carriesSocket() bool {
	switch t {
	case TypeListen, TypeConnect, TypeAccept, TypeAttach, TypeLocal, TypeDetour:
		return true
	default:
		return false
	}
}

// carriesRights reports whether a message of the type has the field Rights.
func (t Type) carriesRights() bool { return t == TypeSetOption || t == TypeGetOption }

// Mode is what carries the bytes of a connection. The numbers are those in messages.
type Mode uint8

// The modes of a connection.
const (
	// ModeTCP is plain TCP: the peer declined, or the handshake failed in a way
	// that leaves TCP intact.
	ModeTCP Mode = 0
	// ModeSMCR is SMC over RDMA.
	ModeSMCR Mode = 1
	// ModeLocal joins two programs of the same host: each has one end of a
	// socketpair.
	ModeLocal Mode = 3
)

var modeNames = [...]string{ModeTCP: "TCP", ModeSMCR: "SMC-R", ModeLocal: "local"}

// valid reports whether m is one of the modes.
func (m Mode) valid() bool { return int(m) < len(modeNames) && modeNames[m] != "" }

// String returns the mode's name as users know it.
func (m Mode) String() string {
	if !m.valid() {
		return "mode " + strconv.Itoa(int(m))
	}
	return modeNames[m]
}

// Flags qualify a message.
type Flags uint16

// Flags of a message.
const (
	// FlagNonblock (TypeConnect): the program's socket is non-blocking.
	FlagNonblock Flags = 1 << iota
	// FlagPeerSMC (TypeEstablished): the SYN-ACK carried the SMC option.
	// (TypeNotCandidate of an accepted connection): the rendezvous is over.
	FlagPeerSMC
	// FlagByOption (TypeWelcome): the TCP option alone tells which peers speak SMC.
	FlagByOption
	// FlagLocal (TypeHello): connections of the program with programs of this host that
	// chose the same are to be joined by a pair, see ModeLocal. (TypeWelcome): the stack
	// does so.
	FlagLocal
	flagsEnd
)

// Message is one message of the protocol, without its descriptor. Fields that
// a type does not use are zero.
//
//	offset size
//	     0    1  Type
//	     1    1  Mode
//	     2    2  Flags
//	     4    4  Seq: pairs a request with its Result
//	     8    8  Conn: the launcher's number of the connection, never 0 nor reused
//	    16    4  Errno (two's complement)
//	    20    4  Level
//	    24    4  Name
//	    28    4  Size
//	    32    2  length of Text
//	    34    2  length of Value
//	    36   24  Local
//	    60   24  Remote
//	    84       Text, Value
//	          8  Rights, only of SetOption and GetOption
//
// An address is 1 byte family (0 none, 4, 6), 1 reserved, 2 port, 4 scope id,
// 16 address. All integers are little endian.
type Message struct {
	Type  Type
	Mode  Mode
	Flags Flags
	Seq   uint32
	Conn  uint64
	Errno int32
	Level int32
	Name  int32
	Size  uint32

	Local  netip.AddrPort
	Remote netip.AddrPort
	Text   string
	Value  []byte
	// Rights are those of the program.
	Rights rights.Rights
}

// AppendBinary appends the encoded message to b. It fails when Text or Value
// is too long or an address has a zone that is not a number.
func (m *Message) AppendBinary(b []byte) ([]byte, error) {
	if len(m.Text) > MaxText || len(m.Value) > MaxValue {
		return b, fmt.Errorf("broker: %v: text of %d and value of %d bytes are too long", m.Type, len(m.Text), len(m.Value))
	}
	le := binary.LittleEndian
	out := append(b, byte(m.Type), byte(m.Mode))
	out = le.AppendUint16(out, uint16(m.Flags))
	out = le.AppendUint32(out, m.Seq)
	out = le.AppendUint64(out, m.Conn)
	out = le.AppendUint32(out, uint32(m.Errno))
	out = le.AppendUint32(out, uint32(m.Level))
	out = le.AppendUint32(out, uint32(m.Name))
	out = le.AppendUint32(out, m.Size)
	out = le.AppendUint16(out, uint16(len(m.Text)))
	out = le.AppendUint16(out, uint16(len(m.Value)))
	out, err := appendAddr(out, m.Local)
	if err != nil {
		return b, err
	}
	out, err = appendAddr(out, m.Remote)
	if err != nil {
		return b, err
	}
	out = append(out, m.Text...)
	out = append(out, m.Value...)
	if m.Type.carriesRights() {
		out = le.AppendUint64(out, uint64(m.Rights))
	}
	return out, nil
}

// ParseMessage decodes one datagram. Text and Value are copies. All errors
// wrap ErrMalformed.
func ParseMessage(b []byte) (Message, error) {
	if len(b) < minMessage || len(b) > MaxMessage {
		return Message{}, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	le := binary.LittleEndian
	m := Message{
		Type: Type(b[0]), Mode: Mode(b[1]), Flags: Flags(le.Uint16(b[2:])),
		Seq: le.Uint32(b[4:]), Conn: le.Uint64(b[8:]),
		Errno: int32(le.Uint32(b[16:])), Level: int32(le.Uint32(b[20:])), Name: int32(le.Uint32(b[24:])),
		Size: le.Uint32(b[28:]),
	}
	nt, nv, tail := int(le.Uint16(b[32:])), int(le.Uint16(b[34:])), 0
	if m.Type.carriesRights() {
		tail = rightsLen
	}
	switch {
	case typeNames[m.Type] == "":
		return Message{}, fmt.Errorf("%w: unknown %v", ErrMalformed, m.Type)
	case !m.Mode.valid():
		return Message{}, fmt.Errorf("%w: unknown %v", ErrMalformed, m.Mode)
	case m.Flags >= flagsEnd:
		return Message{}, fmt.Errorf("%w: flags %#x", ErrMalformed, uint16(m.Flags))
	case nt > MaxText || nv > MaxValue || len(b) != minMessage+nt+nv+tail:
		return Message{}, fmt.Errorf("%w: lengths %d and %d in %d bytes", ErrMalformed, nt, nv, len(b))
	case m.Size > MaxValue:
		return Message{}, fmt.Errorf("%w: size %d", ErrMalformed, m.Size)
	}
	var err error
	if m.Local, err = parseAddr(b[headerLen:]); err != nil {
		return Message{}, err
	}
	if m.Remote, err = parseAddr(b[headerLen+addrLen:]); err != nil {
		return Message{}, err
	}
	m.Text = string(b[minMessage : minMessage+nt])
	if nv > 0 {
		m.Value = append([]byte(nil), b[minMessage+nt:minMessage+nt+nv]...)
	}
	if tail > 0 {
		m.Rights = rights.Rights(le.Uint64(b[minMessage+nt+nv:]))
	}
	return m, nil
}

func appendAddr(b []byte, ap netip.AddrPort) ([]byte, error) {
	var f [addrLen]byte
	a := ap.Addr()
	switch {
	case !a.IsValid():
		return append(b, f[:]...), nil
	case a.Is4():
		f[0] = 4
		v := a.As4()
		copy(f[8:], v[:])
	default:
		f[0] = 6
		v := a.As16()
		copy(f[8:], v[:])
		if z := a.Zone(); z != "" {
			id, err := strconv.ParseUint(z, 10, 32)
			if err != nil {
				return b, fmt.Errorf("broker: the zone of %v is not an interface index", ap)
			}
			binary.LittleEndian.PutUint32(f[4:], uint32(id))
		}
	}
	binary.LittleEndian.PutUint16(f[2:], ap.Port())
	return append(b, f[:]...), nil
}

func parseAddr(b []byte) (netip.AddrPort, error) {
	var a netip.Addr
	switch b[0] {
	case 0:
		return netip.AddrPort{}, nil
	case 4:
		a = netip.AddrFrom4([4]byte(b[8:12]))
	case 6:
		a = netip.AddrFrom16([16]byte(b[8:24]))
		// netip refuses a zone on an IPv4-mapped address, where it means nothing.
		if id := binary.LittleEndian.Uint32(b[4:]); id != 0 && !a.Is4In6() {
			a = a.WithZone(strconv.FormatUint(uint64(id), 10))
		}
	default:
		return netip.AddrPort{}, fmt.Errorf("%w: address family %d", ErrMalformed, b[0])
	}
	return netip.AddrPortFrom(a, binary.LittleEndian.Uint16(b[2:])), nil
}
