// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGolden(t *testing.T) {
	tests := []struct {
		frame Frame
		want  string
	}{
		{Frame{TypeSignal, 7, []byte{9}}, "00000001" + "00000007" + "03" + "09"},
		{Frame{TypeStdout, 0x01020304, []byte("ab")}, "00000002" + "01020304" + "04" + "6162"},
		{Frame{TypeExit, 1, []byte{}}, "00000000" + "00000001" + "06"},
	}
	var stream []byte
	for _, tt := range tests {
		b, err := tt.frame.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(b); got != tt.want {
			t.Errorf("%+v: got %s, want %s", tt.frame, got, tt.want)
		}
		stream = append(stream, b...)
	}
	r := NewReader(bytes.NewReader(stream))
	for _, tt := range tests {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.frame, got); diff != "" {
			t.Errorf("frame (-want +got):\n%s", diff)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: got error %v, want EOF", err)
	}
	for n := range stream[:headerSize+1] {
		_, err := NewReader(bytes.NewReader(stream[:n])).Next()
		if want := io.ErrUnexpectedEOF; n > 0 && err != want {
			t.Errorf("cut after %d bytes: got error %v, want %v", n, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	if _, err := (Frame{Type: TypeStdout, Data: make([]byte, MaxData+1)}).AppendBinary(nil); err == nil {
		t.Error("a frame beyond MaxData: no error")
	}
	for _, s := range []string{"001000010000000104", "000000000000000100", "0000000000000001ff"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewReader(bytes.NewReader(b)).Next(); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: got error %v, want %v", s, err, ErrFrame)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 7, 3, 9})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 7, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for at := 0; ; {
			x, err := r.Next()
			if err != nil {
				return
			}
			out, err := x.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out, b[at:at+len(out)]) {
				t.Fatalf("%x became %x", b[at:], out)
			}
			at += len(out)
		}
	})
}
