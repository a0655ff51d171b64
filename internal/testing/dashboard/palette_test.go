// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"testing"
)

// picture makes a PNG of one row of pixels.
func picture(t *testing.T, pixels ...color.RGBA) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, len(pixels), 1))
	for x, c := range pixels {
		img.SetRGBA(x, 0, c)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReduce: the 256 most frequent colours stay, and others become the most similar one.
func TestReduce(t *testing.T) {
	var pixels []color.RGBA
	for i := range maxColors {
		c := color.RGBA{R: uint8(i), G: 100, A: 255}
		pixels = append(pixels, c, c)
	}
	want := pixels
	pixels = append(pixels, color.RGBA{R: 7, G: 103, A: 255}, color.RGBA{R: 200, G: 99, B: 2, A: 255})
	want = append(want, color.RGBA{R: 7, G: 100, A: 255}, color.RGBA{R: 200, G: 100, A: 255})
	b, err := reduce(picture(t, pixels...))
	if err != nil {
		t.Fatal(err)
	}
	got, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got.(*image.Paletted); !ok || got.Bounds().Dx() != len(want) {
		t.Fatalf("%T with the bounds %v", got, got.Bounds())
	}
	for x := range want {
		if c := color.RGBAModel.Convert(got.At(x, 0)); c != want[x] {
			t.Errorf("pixel %d is %v, want %v", x, c, want[x])
		}
	}
}

// TestReduceEmpty: a page on which nothing was drawn is an error.
func TestReduceEmpty(t *testing.T) {
	if _, err := reduce(picture(t, make([]color.RGBA, 1000)...)); !errors.Is(err, errEmpty) {
		t.Errorf("error %v, want %v", err, errEmpty)
	}
}
