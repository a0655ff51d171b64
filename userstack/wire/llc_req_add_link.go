// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"smcr/smc"
)

// ReqAddLinkMax is the largest number of GIDs in one ReqAddLink.
const ReqAddLinkMax = 255

const reqAddLinkListAt = 28

// ReqAddLink is the request of a client for another link, in version 2. It has the
// RNICs that the client can use. A server that has a path sends AddLink. A server that
// has none replies to this message without GIDs.
//
//	0   header
//	4   reserved (20)
//	24  number of GIDs
//	25  reserved (3)
//	28  GIDs (16 each)
type ReqAddLink struct {
	Layout LLCLayout
	Reply  bool
	// GIDs has the GIDs of the client's RNICs, at most ReqAddLinkMax. A reply has none.
	GIDs []smc.GID
}

// LLCType returns LLCReqAddLink.
func (ReqAddLink) LLCType() LLCType { return LLCReqAddLink }

// IsReply returns m.Reply.
func (m ReqAddLink) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b: 28 bytes and 16 for each GID, LLCLen
// at least. It returns ErrRange if there are too many GIDs, or any in a reply;
// ErrVersion for LLCV1.
func (m ReqAddLink) AppendBinary(b []byte) ([]byte, error) {
	if m.Layout == LLCV1 {
		return b, fmt.Errorf("%w: REQUEST ADD LINK in version 1", ErrVersion)
	}
	if len(m.GIDs) > ReqAddLinkMax || m.Reply && len(m.GIDs) > 0 {
		return b, rangeErr("number of GIDs", len(m.GIDs))
	}
	b, p, err := appendLLC(b, m.Layout, LLCReqAddLink, reqAddLinkListAt+len(smc.GID{})*len(m.GIDs), m.Reply)
	if err != nil {
		return b, err
	}
	p[24] = byte(len(m.GIDs))
	for i, g := range m.GIDs {
		copy(p[reqAddLinkListAt+len(g)*i:], g[:])
	}
	return b, nil
}

// ParseReqAddLink decodes a REQUEST ADD LINK message of version 2. It returns
// ErrLength if the message is too short for its number of GIDs.
func ParseReqAddLink(b []byte) (ReqAddLink, error) {
	flags, l, err := checkLLCV2(b, LLCReqAddLink)
	if err != nil {
		return ReqAddLink{}, err
	}
	m := ReqAddLink{Layout: l, Reply: flags&llcReply != 0}
	n := int(b[24])
	if m.Reply || n == 0 {
		return m, nil
	}
	if want := reqAddLinkListAt + len(smc.GID{})*n; len(b) < want {
		return ReqAddLink{}, fmt.Errorf("%w: REQUEST ADD LINK of %d bytes with %d GIDs", ErrLength, len(b), n)
	}
	m.GIDs = make([]smc.GID, n)
	for i := range m.GIDs {
		m.GIDs[i] = smc.GID(b[reqAddLinkListAt+len(smc.GID{})*i:])
	}
	return m, nil
}
