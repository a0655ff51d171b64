// SPDX-License-Identifier: Apache-2.0

package pingpong

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"smcr/smc"
)

// DestLen is the length of a Dest on the TCP connection, in bytes: LID, queue
// pair number, first PSN and GID in hexadecimal digits with colons between, and
// a zero byte.
const DestLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1

// done is what the client sends when it has the server's Dest.
const done = "done\x00"

// A Dest is what a side says about its queue pair.
type Dest struct {
	LID      uint16 // 0 on Ethernet
	QPN, PSN uint32 // 24 bits
	GID      smc.GID
}

// AppendTo appends the DestLen bytes of d.
func (d *Dest) AppendTo(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%06x:%06x:", d.LID, d.QPN&0xffffff, d.PSN&0xffffff)
	b = hex.AppendEncode(b, d.GID[:])
	return append(b, 0)
}

// ParseDest decodes DestLen bytes.
func ParseDest(b []byte) (d Dest, err error) {
	bad := func() (Dest, error) { return Dest{}, fmt.Errorf("invalid queue pair address: %.60q", b) }
	if len(b) != DestLen || b[4] != ':' || b[11] != ':' || b[18] != ':' {
		return bad()
	}
	lid, err1 := strconv.ParseUint(string(b[:4]), 16, 16)
	qpn, err2 := strconv.ParseUint(string(b[5:11]), 16, 24)
	psn, err3 := strconv.ParseUint(string(b[12:18]), 16, 24)
	if _, err4 := hex.Decode(d.GID[:], b[19:51]); err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return bad()
	}
	d.LID, d.QPN, d.PSN = uint16(lid), uint32(qpn), uint32(psn)
	return d, nil
}
