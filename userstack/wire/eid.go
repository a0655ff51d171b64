// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"
)

// EIDLen is the length of an enterprise ID in bytes.
const EIDLen = 32

// EID is an enterprise ID: two hosts with a common EID may use SMC version 2 with each
// other. On the wire it is ASCII, padded with spaces. Parsers accept any 32 bytes,
// because the EID of a peer is only compared.
type EID [EIDLen]byte

// ParseEID returns s as an EID, padded. Spaces at the end of s are ignored. It returns
// ErrRange unless the rest is what Linux and smc-tools allow for a user EID: 1 to 32
// characters of A-Z, 0-9, '.' and '-'; the first one a letter or digit; no two dots in
// a row.
func ParseEID(s string) (EID, error) {
	e := EID([]byte(strings.Repeat(" ", EIDLen)))
	trimmed := strings.TrimRight(s, " ")
	copy(e[:], trimmed)
	if len(trimmed) > EIDLen || !e.Valid() {
		return EID{}, rangeErr("enterprise ID", fmt.Sprintf("%q: must have 1 to 32 characters from A-Z, 0-9, '.', '-'", s))
	}
	return e, nil
}

// Valid reports whether e follows the rules of [ParseEID].
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

// String returns the EID without the spaces at its end.
func (e EID) String() string { return strings.TrimRight(string(e[:]), " ") }

// HostnameLen is the length of a Hostname in bytes.
const HostnameLen = 32

// Hostname is the name of a host in a first contact of version 2, for display only:
// ASCII, padded with spaces.
type Hostname [HostnameLen]byte

// NewHostname returns s padded with spaces, or its first 32 bytes, as Linux does.
func NewHostname(s string) Hostname {
	h := Hostname([]byte(strings.Repeat(" ", HostnameLen)))
	copy(h[:], s)
	return h
}

// String returns the name without the spaces or zeros at its end.
func (h Hostname) String() string { return strings.TrimRight(string(h[:]), " \x00") }
