// SPDX-License-Identifier: Apache-2.0

package capture_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"smcr/internal/trace/capture"
	"smcr/internal/trace/decode"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, b []byte) (all []decode.Packet, skipped int, err error) {
	t.Helper()
	r, err := capture.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, 0, err
	}
	for {
		var p decode.Packet
		if err := r.Next(&p); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return all, r.Skipped, err
		}
		p.Data = slices.Clone(p.Data)
		all = append(all, p)
	}
}

// TestRoundTrip writes packets of all link types and reads them again.
func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, "smcr 1")
	if err != nil {
		t.Fatal(err)
	}
	var want []decode.Packet
	for i, l := range []decode.Link{decode.Ethernet, decode.RawIP, decode.LinuxSLL2, decode.Ethernet, decode.LinuxSLL} {
		p := decode.Packet{Frame: i + 1, Time: time.Unix(1700000000, int64(i)+1).UTC(), Link: l, Data: []byte("packet")[:i+1], Length: 10 * (i + 1)}
		if err := w.Write(&p, "a comment", "and another"); err != nil {
			t.Fatal(err)
		}
		want = append(want, p)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got, skipped, err := read(t, b.Bytes())
	if d := cmp.Diff(want, got); d != "" || skipped != 0 || err != nil {
		t.Errorf("%d skipped, %v\n%s", skipped, err, d)
	}
}

// TestUnknownLink has a link type that is not known.
func TestUnknownLink(t *testing.T) {
	b, err := os.ReadFile("../testdata/h4_client_no_ueid.cli.pcap")
	if err != nil {
		t.Fatal(err)
	}
	known, _, _ := read(t, b)
	b[20] = 147 // for private use
	all, skipped, err := read(t, b)
	if len(all) != 0 || skipped != len(known) || skipped == 0 || err != nil {
		t.Errorf("%d packets, %d skipped, %v", len(all), skipped, err)
	}
}

// FuzzReader checks that no file makes the reader panic, or never end.
func FuzzReader(f *testing.F) {
	files, err := filepath.Glob("../testdata/*.pcap")
	if err != nil || len(files) < 4 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 2000)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		all, _, err := read(t, b)
		if err != nil && !errors.Is(err, capture.ErrFormat) && !errors.Is(err, capture.ErrTruncated) {
			t.Errorf("%d packets, %v", len(all), err)
		}
	})
}
