// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"os"
	"strings"
)

// A SEID is the system enterprise ID of a host.
type SEID struct {
	Value   string // or "" if there is none
	Enabled bool   // it is proposed to peers
}

func (s *SEID) encode(ae *attrEncoder) {
	if s.Value == "" {
		return // the kernel sends a message without attributes
	}
	padded(ae, attrSEID, s.Value)
	boolAttr(ae, attrSEIDEnabled, s.Enabled)
}

func (s *SEID) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrSEID:
			s.Value = text(ad)
		case attrSEIDEnabled:
			s.Enabled = number(ad) != 0
		}
	}
	return ad.Err()
}

// ueid is the single attribute of the user-defined enterprise ID commands.
type ueid string

func (u *ueid) encode(ae *attrEncoder) { padded(ae, attrUEID, string(*u)) }

func (u *ueid) decode(ad *attrDecoder) error {
	for ad.Next() {
		if ad.Type() == attrUEID {
			*u = ueid(text(ad))
		}
	}
	return ad.Err()
}

// hsLimitation is the single attribute of the handshake limitation dump.
type hsLimitation bool

func (h *hsLimitation) encode(ae *attrEncoder) {
	boolAttr(ae, attrHSEnabled, bool(*h))
}

func (h *hsLimitation) decode(ad *attrDecoder) error {
	for ad.Next() {
		if ad.Type() == attrHSEnabled {
			*h = number(ad) != 0
		}
	}
	return ad.Err()
}

// An EIDError says why a string is not an enterprise ID. It matches
// [os.ErrInvalid].
type EIDError struct {
	EID    string
	Reason string
}

// Error returns "nl: invalid enterprise ID EID: REASON".
func (e *EIDError) Error() string {
	return fmt.Sprintf("nl: invalid enterprise ID %q: %s", e.EID, e.Reason)
}

// Is reports whether target is os.ErrInvalid.
func (e *EIDError) Is(target error) bool { return target == os.ErrInvalid }

// CheckEID checks a user-defined enterprise ID by the rules of the kernel (1 to 32
// characters of A-Z, 0-9, '.' and '-', the first one a letter or digit) and that of
// smc-tools (no two dots in a row). It ignores spaces at the end. The error is an
// *[EIDError].
func CheckEID(eid string) error {
	s := strings.TrimRight(eid, " ")
	alnum := func(c byte) bool { return c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
	switch {
	case s == "":
		return &EIDError{eid, "it is empty"}
	case len(s) > MaxEIDLen:
		return &EIDError{eid, "it is longer than 32 characters"}
	case !alnum(s[0]) && (s[0] == '.' || s[0] == '-'):
		return &EIDError{eid, "the first character must be a letter or digit"}
	case strings.Contains(s, ".."):
		return &EIDError{eid, "consecutive dots are not allowed"}
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '.' && c != '-' {
			return &EIDError{eid, fmt.Sprintf("unsupported character %q: use A-Z, 0-9, '.' and '-'", c)}
		}
	}
	return nil
}
