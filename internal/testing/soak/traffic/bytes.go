// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"fmt"
)

// stream is an endless sequence of bytes that depends on a seed. It remembers a position.
type stream struct {
	seed uint64
	at   uint64 // position of the next byte
}

// word returns the bytes 8n to 8n+7 of the sequence (the function SplitMix64).
func (s *stream) word(n uint64) uint64 {
	z := s.seed + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill writes the next bytes of the sequence to b.
func (s *stream) fill(b []byte) {
	for len(b) > 0 {
		if s.at%8 == 0 && len(b) >= 8 {
			binary.LittleEndian.PutUint64(b, s.word(s.at/8))
			b, s.at = b[8:], s.at+8
			continue
		}
		b[0] = byte(s.word(s.at/8) >> (s.at % 8 * 8))
		b, s.at = b[1:], s.at+1
	}
}

// check compares b with the next bytes of the sequence. The error is a [CorruptError].
func (s *stream) check(b []byte) error {
	for len(b) > 0 {
		if s.at%8 == 0 && len(b) >= 8 && binary.LittleEndian.Uint64(b) == s.word(s.at/8) {
			b, s.at = b[8:], s.at+8
			continue
		}
		if want := byte(s.word(s.at/8) >> (s.at % 8 * 8)); b[0] != want {
			return &CorruptError{At: s.at, Got: b[0], Want: want}
		}
		b, s.at = b[1:], s.at+1
	}
	return nil
}

// CorruptError says that a byte is not the one that was sent.
type CorruptError struct {
	At        uint64 // position in the stream
	Got, Want byte
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("byte %d is %#x, not %#x", e.At, e.Got, e.Want)
}

// lengthError says that a stream ended before all bytes came back, or that more came back
// than was sent. Both are corruption.
type lengthError struct{ got, want uint64 }

func (e *lengthError) Error() string {
	return fmt.Sprintf("%d bytes came back before the end of the stream, not %d", e.got, e.want)
}
