// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A SYN and SYN-ACK of Linux 6.18 over veth as they arrived, with the options of this package.
const (
	goldenSYN    = "900c92851e8377ad00000000d002faf0000000000204" + "05b40402080a9b85e72a000000000103030afe06e2d4c3d9fe06534d4372"
	goldenSYNACK = "9285900c5e772a401e8377aec012fe88000000000204" + "05b40402080a8eaa9c259b85e72a0103030afe06e2d4c3d90101"
)

func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseSegment(t *testing.T) {
	opt := cmp.AllowUnexported(segment{}, end{})
	for _, test := range []struct {
		name, b string
		want    segment
		payload int
	}{
		{"SYN", goldenSYN, segment{
			seq: 0x1e8377ad, flags: flagSYN, window: 64240, mss: 1460, scale: 10, scales: true,
			sack: true, timestamps: true, tsval: 0x9b85e72a,
		}, 52},
		{"SYN-ACK", goldenSYNACK, segment{
			seq: 0x5e772a40, ack: 0x1e8377ae, flags: flagSYN | flagACK, window: 65160, mss: 1460, scale: 10,
			scales: true, sack: true, timestamps: true, tsval: 0x8eaa9c25, tsecr: 0x9b85e72a,
		}, 48},
		{"no options, data behind", "000100020000000300000004501800050000000068656c6c6f", segment{seq: 3, ack: 4, flags: flagACK | flagPSH, window: 5}, 20},
		{"a scale above 14 (RFC 7323, section 2.3)", "00010002000000030000000460020005000000000303ff00", segment{seq: 3, ack: 4, flags: flagSYN, window: 5, scale: 14, scales: true}, 24},
		{"an option that goes beyond the header", "00010002000000030000000460020005000000000101020a", segment{seq: 3, ack: 4, flags: flagSYN, window: 5}, 24},
		{"an option of length 0", "000100020000000300000004600200050000000003000300", segment{seq: 3, ack: 4, flags: flagSYN, window: 5}, 24},
		{"an option of another length than its own", "00010002000000030000000460020005000000000203ff00", segment{seq: 3, ack: 4, flags: flagSYN, window: 5}, 24},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, n, err := parseSegment(fromHex(t, test.b))
			if err != nil || n != test.payload {
				t.Fatalf("payload at %d, %v; want %d", n, err, test.payload)
			}
			if d := cmp.Diff(test.want, got, opt); d != "" {
				t.Error(d)
			}
		})
	}
	for _, bad := range []string{"", "00", goldenSYN[:38], "0001000200000003000000044002000500000000", "0001000200000003000000046002000500000000"} {
		if _, _, err := parseSegment(fromHex(t, bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestEndsOf checks what the two sockets of each side go on with: the program's end and that of the
// peer must fit to what they have said.
func TestEndsOf(t *testing.T) {
	opt := cmp.AllowUnexported(end{})
	syn, _, _ := parseSegment(fromHex(t, goldenSYN))
	synack, _, _ := parseSegment(fromHex(t, goldenSYNACK))
	synack.scale, synack.mss = 7, 1400
	t.Run("client", func(t *testing.T) {
		synack := synack
		synack.tsecr = syn.tsval + 1000 // that of a SYN that was sent again
		inner, outer := ends(syn, synack, nil)
		common := end{scales: true, sack: true, timestamps: true}
		want := common
		want.snd, want.rcv, want.mss, want.sndScale, want.rcvScale = 0x1e8377ae, 0x5e772a41, 1400, 7, 10
		want.tsval, want.sndWindow, want.sndSeq, want.rcvWindow = 0x9b85e72a, 65160, 0x5e772a40, 64240
		want.tsSeen = want.tsval + 1000
		if d := cmp.Diff(want, outer, opt); d != "" {
			t.Error("outer: " + d)
		}
		want = common
		want.snd, want.rcv, want.mss, want.sndScale, want.rcvScale = 0x5e772a41, 0x1e8377ae, 1460, 10, 7
		want.tsval, want.sndWindow, want.sndSeq, want.rcvWindow = 0x8eaa9c25, 64240, 0x1e8377ad, 65160
		want.tsSeen = want.tsval
		if d := cmp.Diff(want, inner, opt); d != "" {
			t.Error("inner: " + d)
		}
	})
	t.Run("server", func(t *testing.T) {
		ack := segment{seq: syn.seq + 1, ack: synack.seq + 1, flags: flagACK, window: 63, timestamps: true, tsval: syn.tsval + 5}
		inner, outer := ends(synack, syn, &ack)
		if outer.sndWindow != 63<<10 || outer.sndSeq != ack.seq || inner.rcvWindow != 63<<10 || inner.tsval != ack.tsval || inner.tsSeen != ack.tsval || outer.tsSeen != synack.tsval {
			t.Errorf("the window of the last ACK does not count: outer %+v, inner %+v", outer, inner)
		}
	})
	t.Run("one side has none of the options", func(t *testing.T) {
		inner, outer := ends(syn, segment{seq: 1, window: 8000}, nil)
		for _, e := range []end{inner, outer} {
			if e.scales || e.sndScale != 0 || e.rcvScale != 0 || e.sack || e.timestamps {
				t.Errorf("%+v", e)
			}
		}
		if outer.mss != defaultMSS || inner.mss != 1460 {
			t.Errorf("segments of %d and %d bytes", outer.mss, inner.mss)
		}
	})
}

// TestFits: who has a small receive buffer gets small segments.
func TestFits(t *testing.T) {
	for _, tt := range []struct {
		window     uint32
		timestamps bool
		want       uint16
	}{
		{65160, true, 1460}, {2920, false, 1460}, {2920, true, 1460}, {2304, false, 1152}, {2304, true, 1164},
		{536, false, 536}, {100, false, 100}, {20, false, leastMSS}, {0, false, 1460}, {0, true, 1460},
	} {
		e := end{mss: 1460, sndWindow: tt.window, timestamps: tt.timestamps}
		if got := e.fits(); got != tt.want {
			t.Errorf("window %d, timestamps %v: %d bytes, want %d", tt.window, tt.timestamps, got, tt.want)
		}
	}
}

func TestTimestamp(t *testing.T) {
	for _, test := range []struct {
		tsval uint32
		later uint32 // how much later the last one is that the other end has seen
		age   time.Duration
		want  uint32
	}{
		{10, 0, 0, 10}, {11, 0, 0, 12}, {11, 0, time.Millisecond, 12}, {11, 0, 2 * time.Millisecond, 12}, {11, 0, 3 * time.Millisecond, 14},
		{10, 0, 999 * time.Microsecond, 10}, {10, 0, time.Millisecond, 10}, {0xffffffff, 0, 0, 0}, {0xfffffffe, 0, 4 * time.Millisecond, 2},
		{10, 3, 2 * time.Millisecond, 14}, {10, 3, 5 * time.Millisecond, 14}, {0xfffffffe, 1, 0, 0},
	} {
		if got := (end{tsval: test.tsval, tsAge: test.age, tsSeen: test.tsval + test.later}).timestamp(); got != test.want {
			t.Errorf("%d, %v ago: %d, want %d", test.tsval, test.age, got, test.want)
		}
	}
}

func FuzzParseSegment(f *testing.F) {
	f.Add(fromHex(f, goldenSYN))
	f.Add(fromHex(f, goldenSYNACK))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, n, err := parseSegment(b)
		if err != nil {
			return
		}
		if n < tcpLen || n > min(len(b), tcpMost) || s.scale > maxScale {
			t.Errorf("header of %d bytes, %+v", n, s)
		}
	})
}
