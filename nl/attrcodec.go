// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Flags in the type of an attribute (linux/netlink.h).
const (
	nlaHeaderLen = 4 // struct nlattr
	nlaNested    = 0x8000
	nlaTypeMask  = 0x3fff
)

var errAttribute = errors.New("nl: attribute reaches beyond its message")

// An attrEncoder appends attributes to b. Unlike the encoder of package netlink, it
// writes each attribute to its place in the message, because tables have many rows: a row
// needs no memory of its own.
type attrEncoder struct {
	b   []byte
	err error // the first error
}

// begin starts an attribute and returns its position for end, which sets the length.
func (ae *attrEncoder) begin(typ uint16) int {
	at := len(ae.b)
	ae.b = binary.NativeEndian.AppendUint16(ae.b, 0)
	ae.b = binary.NativeEndian.AppendUint16(ae.b, typ)
	return at
}

func (ae *attrEncoder) end(at int) {
	n := len(ae.b) - at
	if n > math.MaxUint16 && ae.err == nil {
		ae.err = fmt.Errorf("nl: attribute of %d bytes is too long", n)
	}
	binary.NativeEndian.PutUint16(ae.b[at:], uint16(n))
	for range align4(n) - n {
		ae.b = append(ae.b, 0)
	}
}

// Uint8 appends an integer. Uint16, Uint32 and Uint64 do the same. All use host order.
func (ae *attrEncoder) Uint8(typ uint16, v uint8) {
	at := ae.begin(typ)
	ae.b = append(ae.b, v)
	ae.end(at)
}

func (ae *attrEncoder) Uint16(typ uint16, v uint16) {
	at := ae.begin(typ)
	ae.b = binary.NativeEndian.AppendUint16(ae.b, v)
	ae.end(at)
}

func (ae *attrEncoder) Uint32(typ uint16, v uint32) {
	at := ae.begin(typ)
	ae.b = binary.NativeEndian.AppendUint32(ae.b, v)
	ae.end(at)
}

func (ae *attrEncoder) Uint64(typ uint16, v uint64) {
	at := ae.begin(typ)
	ae.b = binary.NativeEndian.AppendUint64(ae.b, v)
	ae.end(at)
}

// String appends a string and a NUL at its end.
func (ae *attrEncoder) String(typ uint16, s string) {
	at := ae.begin(typ)
	ae.b = append(append(ae.b, s...), 0)
	ae.end(at)
}

// Bytes appends the bytes of b.
func (ae *attrEncoder) Bytes(typ uint16, b []byte) {
	at := ae.begin(typ)
	ae.b = append(ae.b, b...)
	ae.end(at)
}

// Nested appends x as a nest.
func (ae *attrEncoder) Nested(typ uint16, x attrCodec) {
	at := ae.begin(typ | nlaNested)
	x.encode(ae)
	ae.end(at)
}

// An attrDecoder reads attributes in order. Bytes returns a part of the message, not a
// copy.
type attrDecoder struct {
	b    []byte // the attributes after the current one
	typ  uint16
	data []byte
	err  error // the first error
}

// Next moves to the next attribute, at the beginning to the first one. It reports whether
// there is one.
func (ad *attrDecoder) Next() bool {
	if ad.err != nil || len(ad.b) == 0 {
		return false
	}
	if len(ad.b) < nlaHeaderLen {
		ad.err = errAttribute
		return false
	}
	n := int(binary.NativeEndian.Uint16(ad.b))
	if n < nlaHeaderLen || n > len(ad.b) {
		ad.err = errAttribute
		return false
	}
	ad.typ = binary.NativeEndian.Uint16(ad.b[2:])
	ad.data = ad.b[nlaHeaderLen:n:n]
	ad.b = ad.b[min(align4(n), len(ad.b)):] // the padding of the last attribute may be missing
	return true
}

// Type returns the type of the current attribute without flags.
func (ad *attrDecoder) Type() uint16 { return ad.typ & nlaTypeMask }

// Bytes returns the content of the current attribute.
func (ad *attrDecoder) Bytes() []byte { return ad.data }

// Nested decodes the current attribute into x.
func (ad *attrDecoder) Nested(x attrCodec) {
	if err := unmarshalAttrs(ad.data, x); err != nil {
		ad.fail(err)
	}
}

// fail sets the error of the decoder, unless it has one.
func (ad *attrDecoder) fail(err error) {
	if ad.err == nil {
		ad.err = err
	}
}

// Err returns the first error.
func (ad *attrDecoder) Err() error { return ad.err }
