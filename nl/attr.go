// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/mdlayher/netlink"
)

// An attrCodec is an object that travels as netlink attributes. encode and
// decode are inverse to each other; decode ignores types it does not know.
type attrCodec interface {
	encode(ae *netlink.AttributeEncoder)
	decode(ad *netlink.AttributeDecoder) error
}

// nest encodes an object as a nested attribute.
func nest(ae *netlink.AttributeEncoder, typ uint16, x attrCodec) {
	ae.Nested(typ, func(nae *netlink.AttributeEncoder) error {
		x.encode(nae)
		return nil
	})
}

// denest decodes a nested attribute into an object.
func denest(ad *netlink.AttributeDecoder, x attrCodec) { ad.Nested(x.decode) }

// number returns the current attribute as an unsigned integer of 1, 2, 4 or 8
// bytes in host order. The kernel's documentation and its messages disagree
// about some widths, and its "uint" type has two.
func number(ad *netlink.AttributeDecoder) uint64 {
	var v uint64
	ad.Do(func(b []byte) error {
		switch len(b) {
		case 1:
			v = uint64(b[0])
		case 2:
			v = uint64(binary.NativeEndian.Uint16(b))
		case 4:
			v = uint64(binary.NativeEndian.Uint32(b))
		case 8:
			v = binary.NativeEndian.Uint64(b)
		default:
			return fmt.Errorf("nl: attribute %d has %d bytes, not an integer", ad.Type(), len(b))
		}
		return nil
	})
	return v
}

// number8, number16 and number32 return the current attribute as an integer of
// that many bits, cutting off what exceeds them.
func number8(ad *netlink.AttributeDecoder) uint8   { return uint8(number(ad)) }
func number16(ad *netlink.AttributeDecoder) uint16 { return uint16(number(ad)) }
func number32(ad *netlink.AttributeDecoder) uint32 { return uint32(number(ad)) }

// uintAttr encodes v in 4 bytes where it fits and in 8 where it does not: the
// kernel's attribute type "uint".
func uintAttr(ae *netlink.AttributeEncoder, typ uint16, v uint64) {
	if v <= math.MaxUint32 {
		ae.Uint32(typ, uint32(v))
		return
	}
	ae.Uint64(typ, v)
}

func boolAttr(ae *netlink.AttributeEncoder, typ uint16, v bool) {
	var b uint8
	if v {
		b = 1
	}
	ae.Uint8(typ, b)
}

// padded encodes s blank-padded to 32 characters, as the kernel sends host names
// and enterprise IDs.
func padded(ae *netlink.AttributeEncoder, typ uint16, s string) {
	ae.String(typ, fmt.Sprintf("%-*s", MaxEIDLen, s))
}

// text returns the current attribute as a string without padding.
func text(ad *netlink.AttributeDecoder) string {
	s, _, _ := strings.Cut(string(ad.Bytes()), "\x00")
	return strings.TrimRight(s, " ")
}

// limited encodes at most n bytes of s. Blanks at the end are padding to those
// who decode it.
func limited(ae *netlink.AttributeEncoder, typ uint16, s string, n int) {
	if len(s) > n {
		s = strings.TrimRight(s[:n], " ")
	}
	ae.String(typ, s)
}

// marshalAttrs returns the encoding of x without a nest around it.
func marshalAttrs(x attrCodec) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	x.encode(ae)
	return ae.Encode()
}

// unmarshalAttrs decodes b, which holds no nest, into x.
func unmarshalAttrs(b []byte, x attrCodec) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	if err := x.decode(ad); err != nil {
		return err
	}
	return ad.Err()
}

// nestedAttr returns the encoding of x within a nest of type typ.
func nestedAttr(typ uint16, x attrCodec) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	nest(ae, typ, x)
	return ae.Encode()
}

// unnestAttr decodes the first attribute of type typ in b into x and reports
// whether there was one.
func unnestAttr(b []byte, typ uint16, x attrCodec) (bool, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return false, err
	}
	found := false
	for ad.Next() {
		if ad.Type() == typ && !found {
			found = true
			denest(ad, x)
		}
	}
	return found, ad.Err()
}
