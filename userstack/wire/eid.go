// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"
)

// EIDLen is the length of an enterprise ID in bytes.
const EIDLen = 32

// EID is an enterprise ID: hosts that have one in common may use SMC
// version 2 with each other. On the wire it is ASCII, padded with blanks.
// Parsers take any 32 bytes for one, since all that is done with the EID of a
// peer is to compare it.
type EID [EIDLen]byte

// ParseEID returns the EID that s names, padded. It returns ErrRange unless s,
// but for blanks at its end, is what Linux and smc-tools allow for a user EID:
// 1 to 32 characters of A-Z, 0-9, '.' and '-', the first a letter or digit,
// no two dots in a row.
func ParseEID(s string) (EID, error) {
	e := EID([]byte(strings.Repeat(" ", EIDLen)))
	trimmed := strings.TrimRight(s, " ")
	copy(e[:], trimmed)
	if len(trimmed) > EIDLen || !e.Valid() {
		return EID{}, rangeErr("enterprise ID", fmt.Sprintf("%q: must have 1 to 32 characters from A-Z, 0-9, '.', '-'", s))
	}
	return e, nil
}

// Valid reports whether e obeys the rules of ParseEID.
func (e EID) Valid() bool {
	s := e.String()
	if s == "" || s[0] == '.' || s[0] == '-' || strings.Contains(s, "..") {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// String returns the EID without the blanks at its end.
func (e EID) String() string { return strings.TrimRight(string(e[:]), " ") }

// HostnameLen is the length of a Hostname in bytes.
const HostnameLen = 32

// Hostname is the name of a host as a first contact of version 2 tells it,
// for display only: ASCII, padded with blanks.
type Hostname [HostnameLen]byte

// NewHostname pads s, or cuts it at 32 bytes as Linux does.
func NewHostname(s string) Hostname {
	h := Hostname([]byte(strings.Repeat(" ", HostnameLen)))
	copy(h[:], s)
	return h
}

// String returns the name without padding of blanks or zeros.
func (h Hostname) String() string { return strings.TrimRight(string(h[:]), " \x00") }
