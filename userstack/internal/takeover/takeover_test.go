// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		{Type: Sockets, Groups: []Group{{Index: 4, IPv6: true, Files: 2}}}, {Type: Frozen, Stats: &s, Fallbacks: &f}, {Type: Ended, Stats: &s},
	} {
		if err := a.Send(m); err != nil {
			t.Fatal(err)
		}
		got, err := b.Expect(m.Type, testkind.Patience)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, got); d != "" {
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
		if d := cmp.Diff(m, m2); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	})
}
