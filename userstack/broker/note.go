// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"fmt"
)

// NoteReason is why a launcher left a connection to TCP without asking.
type NoteReason uint8

// Reasons of a note.
const (
	// NoteNoPeer: the peer does not speak SMC.
	NoteNoPeer NoteReason = iota + 1
	// NoteShort: earlier connections to the peer ended too soon for SMC to be faster.
	NoteShort
	noteEnd
)

// Note describes a connection of a program that the launcher has left to TCP. The service
// lists the connection if the kernel confirms that the socket exists.
type Note struct {
	// Cookie is the socket's (SO_COOKIE).
	Cookie uint64
	Reason NoteReason
	// Client is true if the program opened the connection.
	Client bool
}

const (
	noteLen = 10
	// MaxNotes bounds the notes of a message.
	MaxNotes = MaxValue / noteLen
)

// AppendNotes appends encoded notes to b, in little endian: 8 bytes cookie, 1 byte
// reason, 1 byte that is 1 for a client.
func AppendNotes(b []byte, notes []Note) []byte {
	for _, n := range notes {
		b = binary.LittleEndian.AppendUint64(b, n.Cookie)
		client := byte(0)
		if n.Client {
			client = 1
		}
		b = append(b, byte(n.Reason), client)
	}
	return b
}

// ParseNotes decodes what AppendNotes encoded. All errors wrap ErrMalformed.
func ParseNotes(b []byte) ([]Note, error) {
	if len(b)%noteLen != 0 {
		return nil, fmt.Errorf("%w: notes of %d bytes", ErrMalformed, len(b))
	}
	notes := make([]Note, 0, len(b)/noteLen)
	for ; len(b) > 0; b = b[noteLen:] {
		n := Note{Cookie: binary.LittleEndian.Uint64(b), Reason: NoteReason(b[8]), Client: b[9] == 1}
		if n.Reason == 0 || n.Reason >= noteEnd || b[9] > 1 {
			return nil, fmt.Errorf("%w: note % x", ErrMalformed, b[:noteLen])
		}
		notes = append(notes, n)
	}
	return notes, nil
}

// A Noter is a [Handler] that records connections which launchers leave to TCP.
type Noter interface {
	// Noted is called with notes of the launcher l. It must not block.
	Noted(l *Launcher, notes []Note)
}

// Note sends notes about connections that are left to TCP, MaxNotes at most. The service
// does not answer. The error wraps ErrServiceGone.
func (cl *Client) Note(notes []Note) error {
	return cl.send(&Message{Type: TypeNote, Value: AppendNotes(nil, notes)}, -1)
}

// ByOption reports whether the TCP option alone tells the service which peers speak SMC.
// Then a peer whose SYN does not have the option does not speak SMC.
func (cl *Client) ByOption() bool { return cl.byOption }

// Local reports whether the stack joins connections with programs of this host by a pair:
// see FlagLocal.
func (cl *Client) Local() bool { return cl.local }

// newHello returns the first message of a launcher.
func newHello(command string, flags []Flags) *Message {
	m := &Message{Type: TypeHello, Size: Version, Text: clip(command)}
	for _, f := range flags {
		m.Flags |= f
	}
	return m
}

// noted acts on a TypeNote.
func (ss *session) noted(m Message) error {
	notes, err := ParseNotes(m.Value)
	if err != nil {
		return err
	}
	if h, ok := ss.s.Handler.(Noter); ok {
		h.Noted(ss.l, notes)
	}
	return nil
}
