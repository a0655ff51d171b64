// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"smcr/smc"
)

// KeysLen is the length of Keys on the TCP connection in bytes: fields in
// hexadecimal digits, a colon after each, and a zero byte.
const KeysLen = 108

// Keys is what a side says about its queue pair and memory.
type Keys struct {
	LID      uint16 // 0 on Ethernet
	OutReads uint16 // RDMA READs that this side takes at once
	QPN, PSN uint32 // 24 bits
	RKey     uint32
	VAddr    uint64 // of the memory that the peer writes to or reads
	GID      smc.GID
	SRQN     uint32 // of a shared receive queue, unused here
}

// fields of Keys in hexadecimal digits, in their order, around the 16 of the GID.
var (
	headFields = [...]int{4, 4, 6, 6, 8, 16}
	errKeys    = errors.New("invalid queue pair address")
)

// AppendTo appends the KeysLen bytes of k.
func (k *Keys) AppendTo(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", k.LID, k.OutReads, k.QPN&0xffffff, k.PSN&0xffffff, k.RKey, k.VAddr)
	for i := range k.GID {
		b = append(hex.AppendEncode(b, k.GID[i:i+1]), ':')
	}
	b = fmt.Appendf(b, "%08x:", k.SRQN)
	return append(b, 0)
}

// ParseKeys decodes KeysLen bytes.
func ParseKeys(b []byte) (Keys, error) {
	if len(b) != KeysLen {
		return Keys{}, fmt.Errorf("%w: %d bytes instead of %d", errKeys, len(b), KeysLen)
	}
	rest, err := string(b), error(nil)
	next := func(digits int) uint64 {
		field, after, ok := strings.Cut(rest, ":")
		rest = after
		v, perr := strconv.ParseUint(field, 16, 4*digits)
		if err == nil && (!ok || perr != nil || len(field) != digits) {
			err = fmt.Errorf("%w: %.110q", errKeys, b)
		}
		return v
	}
	var head [len(headFields)]uint64
	for i, digits := range headFields {
		head[i] = next(digits)
	}
	k := Keys{
		LID: uint16(head[0]), OutReads: uint16(head[1]), QPN: uint32(head[2]), PSN: uint32(head[3]),
		RKey: uint32(head[4]), VAddr: head[5],
	}
	for i := range k.GID {
		k.GID[i] = byte(next(2))
	}
	k.SRQN = uint32(next(8))
	if err != nil {
		return Keys{}, err
	}
	return k, nil
}
