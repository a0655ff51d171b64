// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// An attrCodec is an object that is sent as netlink attributes. encode and decode are
// the inverse of each other. decode ignores attribute types that it does not know.
type attrCodec interface {
	encode(ae *attrEncoder)
	decode(ad *attrDecoder) error
}

// nest encodes an object as a nested attribute.
func nest(ae *attrEncoder, typ uint16, x attrCodec) { ae.Nested(typ, x) }

// denest decodes a nested attribute into an object.
func denest(ad *attrDecoder, x attrCodec) { ad.Nested(x) }

// number returns the current attribute as an unsigned integer of 1, 2, 4 or 8
// bytes in host order. The kernel's documentation and its messages disagree
// about some widths, and its "uint" type has two.
func number(ad *attrDecoder) uint64 {
	switch b := ad.Bytes(); len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	default:
		ad.fail(fmt.Errorf("nl: attribute %d has %d bytes, not an integer", ad.Type(), len(b)))
		return 0
	}
}

// number8, number16 and number32 return the low 8, 16 or 32 bits of the current
// attribute.
func number8(ad *attrDecoder) uint8   { return uint8(number(ad)) }
func number16(ad *attrDecoder) uint16 { return uint16(number(ad)) }
func number32(ad *attrDecoder) uint32 { return uint32(number(ad)) }

// uintAttr encodes v in 4 bytes if it fits, otherwise in 8: the attribute type "uint" of
// the kernel.
func uintAttr(ae *attrEncoder, typ uint16, v uint64) {
	if v <= math.MaxUint32 {
		ae.Uint32(typ, uint32(v))
		return
	}
	ae.Uint64(typ, v)
}

func boolAttr(ae *attrEncoder, typ uint16, v bool) {
	var b uint8
	if v {
		b = 1
	}
	ae.Uint8(typ, b)
}

// padded encodes s with blanks up to 32 characters, as the kernel sends host names and
// enterprise IDs.
func padded(ae *attrEncoder, typ uint16, s string) {
	at := ae.begin(typ)
	ae.b = append(ae.b, s...)
	for range MaxEIDLen - len(s) {
		ae.b = append(ae.b, ' ')
	}
	ae.b = append(ae.b, 0)
	ae.end(at)
}

// text returns the current attribute as a string without padding.
func text(ad *attrDecoder) string {
	b, _, _ := bytes.Cut(ad.Bytes(), []byte{0})
	return string(bytes.TrimRight(b, " "))
}

// rawText returns the current attribute as a string without NULs at its end.
func rawText(ad *attrDecoder) string { return string(bytes.TrimRight(ad.Bytes(), "\x00")) }

// limited encodes at most n bytes of s. Decoders remove blanks at the end.
func limited(ae *attrEncoder, typ uint16, s string, n int) {
	if len(s) > n {
		s = strings.TrimRight(s[:n], " ")
	}
	ae.String(typ, s)
}

// marshalAttrs returns the encoding of x without a nest.
func marshalAttrs(x attrCodec) ([]byte, error) { return appendAttrs(nil, x) }

// appendAttrs is like marshalAttrs and appends to b.
func appendAttrs(b []byte, x attrCodec) ([]byte, error) {
	ae := attrEncoder{b: b}
	x.encode(&ae)
	return ae.b, ae.err
}

// unmarshalAttrs decodes b, which has no nest, into x.
func unmarshalAttrs(b []byte, x attrCodec) error {
	ad := attrDecoder{b: b}
	if err := x.decode(&ad); err != nil {
		return err
	}
	return ad.Err()
}

// unnestAttr decodes the first attribute of type typ in b into x and reports
// whether there was one.
func unnestAttr(b []byte, typ uint16, x attrCodec) (bool, error) {
	ad := attrDecoder{b: b}
	found := false
	for ad.Next() {
		if ad.Type() == typ && !found {
			found = true
			ad.Nested(x)
		}
	}
	return found, ad.Err()
}
