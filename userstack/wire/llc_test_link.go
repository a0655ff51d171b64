// SPDX-License-Identifier: Apache-2.0

package wire

// TestLink asks whether a link is alive; the reply echoes UserData (RFC 7609,
// appendix A.3.8, figure 40).
//
//	0   header
//	4   user data (16)
//	20  reserved (24)
type TestLink struct {
	Reply    bool
	UserData [16]byte
}

// LLCType returns LLCTestLink.
func (TestLink) LLCType() LLCType { return LLCTestLink }

// IsReply returns m.Reply.
func (m TestLink) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b. It cannot fail.
func (m TestLink) AppendBinary(b []byte) ([]byte, error) {
	b, p := appendLLC(b, LLCTestLink, m.Reply)
	copy(p[4:], m.UserData[:])
	return b, nil
}

// ParseTestLink decodes a TEST LINK message.
func ParseTestLink(b []byte) (TestLink, error) {
	flags, err := checkLLC(b, LLCTestLink)
	if err != nil {
		return TestLink{}, err
	}
	return TestLink{Reply: flags&llcReply != 0, UserData: [16]byte(b[4:20])}, nil
}
