// SPDX-License-Identifier: Apache-2.0

package wire

// TestLink asks whether a link is alive; the reply echoes UserData (RFC 7609,
// appendix A.3.8, figure 40).
//
//	0   header
//	4   user data (16)
//	20  reserved (24)
type TestLink struct {
	Layout   LLCLayout
	Reply    bool
	UserData [16]byte
}

// LLCType returns LLCTestLink.
func (TestLink) LLCType() LLCType { return LLCTestLink }

// IsReply returns m.Reply.
func (m TestLink) IsReply() bool { return m.Reply }

// AppendBinary appends the LLCLen bytes of the message to b; ErrRange if
// Layout is none of the defined ones.
func (m TestLink) AppendBinary(b []byte) ([]byte, error) {
	b, p, err := appendLLC(b, m.Layout, LLCTestLink, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	copy(p[4:], m.UserData[:])
	return b, nil
}

// ParseTestLink decodes a TEST LINK message of either version.
func ParseTestLink(b []byte) (TestLink, error) {
	flags, l, err := checkLLCAny(b, LLCTestLink)
	if err != nil {
		return TestLink{}, err
	}
	return TestLink{Layout: l, Reply: flags&llcReply != 0, UserData: [16]byte(b[4:20])}, nil
}
