// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/stats"
)

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends[0], ends[1]
}

// addresses has cmp compare them as they are.
var addresses = cmpopts.EquateComparable(netip.Addr{})

func TestMessages(t *testing.T) {
	testkind.System(t)
	x, y := pair(t)
	a, b := New(x, false), New(y, true)
	s := stats.Stats{Panics: 3}
	s.SMCR.TXSizes[2] = 7
	f := stats.Fallbacks{ClientTotal: 2, Reasons: []stats.Fallback{{Reason: 5, Count: 2}}}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, m := range []Message{
		{Type: Hello, Release: "1.2"}, {Type: Offer, Release: "1.1"}, {Type: Ready}, {Type: Commit}, {Type: Done},
		{Type: Sockets, Groups: []Group{{Index: 4, IPv6: true, Files: 2}}}, {Type: Frozen, Stats: &s, Fallbacks: &f, Known: []Known{{Host: netip.MustParseAddr("192.0.2.1"), MAC: []byte{2, 0, 0, 0, 0, 1}, Age: 7}, {Host: netip.MustParseAddr("fd00::")}}}, {Type: Ended, Stats: &s},
	} {
		if err := a.Send(m); err != nil {
			t.Fatal(err)
		}
		got, err := b.Expect(m.Type, testkind.Patience)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, got, addresses); d != "" {
			t.Error(d)
		}
	}
	many := make([]*os.File, MaxFiles)
	for i := range many {
		many[i] = null
	}
	if err := a.Send(Message{Type: Sockets, Files: many}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Expect(Sockets, testkind.Patience)
	if err != nil || len(got.Files) != MaxFiles {
		t.Errorf("%d files, %v", len(got.Files), err)
	}
	got.Close()
	if err := a.Send(Message{Type: Sockets, Files: append(many, null)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Expect(Sockets, testkind.Patience); !errors.Is(err, ErrMalformed) {
		t.Errorf("too many files: %v", err)
	}
	_ = a.Send(Message{Type: Refuse, Text: "not now"})
	if _, err := b.Expect(Offer, testkind.Patience); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "not now") {
		t.Errorf("refused: %v", err)
	}
	_ = a.Send(Message{Type: Ready})
	if _, err := b.Expect(Offer, testkind.Patience); !errors.Is(err, ErrMalformed) {
		t.Errorf("out of turn: %v", err)
	}
	if _, err := b.Receive(time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing came: %v", err)
	}
	_ = a.Close()
	if _, err := b.Receive(testkind.Patience); !errors.Is(err, io.EOF) {
		t.Errorf("closed: %v", err)
	}
}

// TestVersions checks that each side notices the version of the other, whatever the rest of
// the message is.
func TestVersions(t *testing.T) {
	testkind.System(t)
	for _, old := range []bool{false, true} {
		x, y := pair(t)
		b := binary.LittleEndian.AppendUint32([]byte(magic), Version()+1)
		b = append(binary.LittleEndian.AppendUint32(b, 77), 0xff, 0)
		if _, err := x.Write(b); err != nil {
			t.Fatal(err)
		}
		_, err := New(y, old).Receive(testkind.Patience)
		want := VersionError{Old: Version() + 1, New: Version()}
		if old {
			want = VersionError{Old: Version(), New: Version() + 1}
		}
		if e, ok := errors.AsType[*VersionError](err); !ok || *e != want || !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), "stop the old one first") {
			t.Errorf("%v, want %v", err, &want)
		}
	}
}

// TestFields: the fields of a message may be fewer, or more, than this release knows.
func TestFields(t *testing.T) {
	frozen := func(body string) []byte {
		b := binary.LittleEndian.AppendUint32([]byte(magic), Version())
		return append(binary.LittleEndian.AppendUint32(b, uint32(Frozen)), body...)
	}
	for body, known := range map[string]int{
		`{"Stats":{"Panics":3},"Fallbacks":{}}`:                                               0, // before Known
		`{"Stats":{"Panics":3},"Known":[{"Host":"192.0.2.1","Later":1}],"Later":{"More":[]}}`: 1,
	} {
		m, _, err := parse(frozen(body))
		if err != nil || m.Type != Frozen || m.Stats == nil || m.Stats.Panics != 3 || len(m.Known) != known {
			t.Errorf("%s: %+v, %v", body, m, err)
		}
	}
}

// TestLargest: the largest message that a stack can have to send is not too large.
func TestLargest(t *testing.T) {
	const maxKnown = 1024 // rendezvous.MaxKnown
	m := Message{Type: Frozen, Stats: &stats.Stats{}, Fallbacks: &stats.Fallbacks{}}
	fill(reflect.ValueOf(m.Stats).Elem())
	many := stats.Fallback{Side: 1, Reason: math.MaxUint32, Count: math.MaxUint64}
	m.Fallbacks.Reasons = slices.Repeat([]stats.Fallback{many}, 2*stats.MaxReasons)
	m.Fallbacks.PeerReasons = m.Fallbacks.Reasons
	m.Known = slices.Repeat([]Known{{Host: netip.MustParseAddr("2001:1111:1111:1111:1111:1111:1111:1111"), MAC: bytes.Repeat([]byte{0xff}, 6), Age: 24 * 3600}}, maxKnown)
	b, err := m.appendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of %d", len(b), maxMessage)
}

// fill sets all numbers to the longest ones.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Uint64:
		v.SetUint(math.MaxUint64)
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range []Message{{Type: Hello, Release: "1"}, {Type: Frozen, Stats: &stats.Stats{}}, {Type: Sockets, Groups: []Group{{Index: 1}}}} {
		b, err := m.appendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, sender, err := parse(b)
		if err != nil || sender != Version() {
			return
		}
		again, err := m.appendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		m2, _, err := parse(again)
		if d := cmp.Diff(m, m2, addresses, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	})
}
