// SPDX-License-Identifier: Apache-2.0

package inetdiag

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
)

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// unhex returns bytes of a host in little endian.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	if !littleEndian() {
		t.Skip("the bytes are those of another byte order")
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Answers of Linux 6 about two connected sockets: struct inet_diag_msg, and some attributes.
const (
	answer4 = "02010200d92ab48f7f0000010000000000000000000000007f00000100000000000000000000000000000000e2651e0000000000983a0000000000000000000000000000bc70d200050008000000000008000f00000000000c001500010000000000000006001600520000"
	answer6 = "0a010200e9668329000000000000000000000000000000010000000000000000000000000000000100000000e3651e0000000000983a0000000000000000000000000000be70d200050008000000000008000f00000000000c001500010000000000000006001600120000"
)

func id(local, remote string, dev uint32, cookie uint64) ID {
	return ID{netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote), dev, cookie}
}

func TestRequest(t *testing.T) {
	for name, test := range map[string]struct {
		r    Request
		want string
	}{
		"IPv4": {One(id("10.77.0.1:443", "10.77.0.2:40001", 3, 0x1122334455667788)),
			"02060000ffffffff01bb9c410a4d00010000000000000000000000000a4d0002000000000000000000000000030000008877665544332211"},
		"IPv4 of an IPv6 socket": {One(id("[::ffff:10.77.0.1]:443", "[::ffff:10.77.0.2]:40001", 3, 0x1122334455667788)),
			"02060000ffffffff01bb9c410a4d00010000000000000000000000000a4d0002000000000000000000000000030000008877665544332211"},
		"IPv6": {One(id("[fd00::1]:443", "[fd00::2]:40001", 0, AnyCookie)),
			"0a060000ffffffff01bb9c41fd000000000000000000000000000001fd00000000000000000000000000000200000000ffffffffffffffff"},
		"nothing": {One(ID{Cookie: AnyCookie - 1}),
			"02060000ffffffff00000000000000000000000000000000000000000000000000000000000000000000000000000000feffffffffffffff"},
		"all": {Request{Family: IPv6, Extensions: 1 << (AttrInfo - 1), States: 1<<1 | 1<<10},
			"0a06020002040000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"},
		"another protocol": {Request{Family: IPv4, Protocol: 253},
			"02fd000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"},
	} {
		if got, want := test.r.Serialize(), unhex(t, test.want); !slices.Equal(got, want) || len(got) != test.r.Len() {
			t.Errorf("%s:\n%x, want\n%x", name, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Message{
		answer4: {Family: IPv4, State: 1, ID: id("127.0.0.1:55594", "127.0.0.1:46223", 0, 1992162), Inode: 13791420},
		answer6: {Family: IPv6, State: 1, ID: id("[::1]:59750", "[::1]:33577", 0, 1992163), Inode: 13791422},
	} {
		b := unhex(t, text)
		got, ok := Parse(b)
		cgroup, shutdown := got.Cgroup(), got.Attr(8)
		got.attrs = nil
		if !ok || got.ID != want.ID || got.Family != want.Family || got.State != want.State || got.UID != want.UID || got.Inode != want.Inode {
			t.Errorf("%t, %+v, want %+v", ok, got, want)
		}
		if cgroup != 1 || !slices.Equal(shutdown, []byte{0}) || got.Attr(8) != nil {
			t.Errorf("cgroup %d, attribute 8 %x", cgroup, shutdown)
		}
		// All fields, in other bytes: user, device, the upper half of the cookie, an address of IPv4 in one of IPv6.
		binary.NativeEndian.PutUint32(b[40:], 7)
		binary.NativeEndian.PutUint32(b[48:], 9)
		binary.NativeEndian.PutUint32(b[64:], 1000)
		if got, ok = Parse(b); !ok || got.ID.Dev != 7 || got.ID.Cookie != 9<<32|want.ID.Cookie || got.UID != 1000 {
			t.Errorf("%t, %+v", ok, got)
		}
		for n := range messageLen {
			if m, ok := Parse(b[:n]); ok {
				t.Errorf("%d bytes: %+v", n, m)
			}
		}
		for n := messageLen; n < len(b); n++ { // without the last attributes, or with a part of one
			if m, ok := Parse(b[:n]); !ok || m.Cgroup() > 1 {
				t.Errorf("%d bytes: %t, cgroup %d", n, ok, m.Cgroup())
			}
		}
		b[0] = 1
		if m, ok := Parse(b); ok {
			t.Errorf("a unix socket: %+v", m)
		}
	}
	b := make([]byte, messageLen)
	b[0] = IPv6
	copy(b[8:], netip.MustParseAddr("::ffff:10.0.0.1").AsSlice())
	if m, ok := Parse(b); !ok || m.ID.Local != netip.MustParseAddrPort("10.0.0.1:0") {
		t.Errorf("%t, %+v", ok, m)
	}
}

// FuzzParse: whatever comes, attributes are within the answer, and the request for a socket of an answer has the ID of the answer where
// the kernel looks for it.
func FuzzParse(f *testing.F) {
	for _, text := range []string{answer4, answer6} {
		b, _ := hex.DecodeString(text)
		f.Add(b, uint16(AttrCgroup))
		f.Add(b[:messageLen+6], uint16(8))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint16) {
		m, ok := Parse(b)
		if !ok {
			if len(b) >= messageLen && (b[0] == IPv4 || b[0] == IPv6) {
				t.Error("a whole answer is none")
			}
			return
		}
		if v := m.Attr(kind); len(v) > len(b)-messageLen-4 && v != nil {
			t.Errorf("attribute %d has %d bytes, of %d", kind, len(v), len(b))
		}
		_ = m.Cgroup()
		q := One(m.ID).Serialize()
		if len(q) != requestLen || !slices.Equal(q[8:12], b[4:8]) || !slices.Equal(q[44:56], b[40:52]) {
			t.Errorf("the request\n%x is for another socket than\n%x", q, b)
		}
		if m.Family == IPv4 && (!slices.Equal(q[12:16], b[8:12]) || !slices.Equal(q[28:32], b[24:28]) || q[0] != IPv4) {
			t.Errorf("the request\n%x has other addresses than\n%x", q, b)
		}
		if m.Family == IPv6 && m.ID.Local.Addr().Is6() && m.ID.Remote.Addr().Is6() && (!slices.Equal(q[12:44], b[8:40]) || q[0] != IPv6) {
			t.Errorf("the request\n%x has other addresses than\n%x", q, b)
		}
	})
}
