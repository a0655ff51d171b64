// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNotes(t *testing.T) {
	notes := []Note{{Cookie: 0x0102030405060708, Reason: NoteNoPeer}, {Cookie: 9, Reason: NoteShort, Client: true}}
	b := AppendNotes(nil, notes)
	if got, want := hex.EncodeToString(b), "0807060504030201"+"0100"+"0900000000000000"+"0201"; got != want {
		t.Errorf("encoding %s, want %s", got, want)
	}
	got, err := ParseNotes(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(notes, got); diff != "" {
		t.Errorf("decoding (-want +got):\n%s", diff)
	}
	full := AppendNotes(nil, make([]Note, MaxNotes))
	if len(full) > MaxValue || len(full)+noteLen <= MaxValue {
		t.Errorf("%d notes have %d bytes", MaxNotes, len(full))
	}
	for name, b := range map[string][]byte{
		"cut":    b[:len(b)-1],
		"reason": append(bytes.Clone(b[:8]), byte(noteEnd), 0),
		"none":   append(bytes.Clone(b[:8]), 0, 0),
		"side":   append(bytes.Clone(b[:8]), 1, 2),
	} {
		if _, err := ParseNotes(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add(AppendNotes(nil, []Note{{1, NoteShort, true}, {2, NoteNoPeer, false}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		notes, err := ParseNotes(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(AppendNotes(nil, notes), b) {
			t.Fatalf("%v is not % x", notes, b)
		}
	})
}
