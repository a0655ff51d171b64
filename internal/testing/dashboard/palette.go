// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"slices"
)

const (
	maxColors = 256 // of a palette in PNG
	minColors = 16  // of a page with panels; each panel has some colours of its own
)

// errEmpty means that the browser has drawn nothing.
var errEmpty = errors.New("the picture is empty: open the page in a browser, whose console has the reason")

// reduce returns a picture with a palette, which is a third as long: a PNG to a PNG. The
// palette has the most frequent colours, so areas and lines do not change. Of the other
// colours, those at the edges of letters and lines, each becomes the most similar one.
func reduce(b []byte) ([]byte, error) {
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	pixels := make([]color.RGBA, 0, img.Bounds().Dx()*img.Bounds().Dy())
	count := map[color.RGBA]int{}
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			c := color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
			pixels = append(pixels, c)
			count[c]++
		}
	}
	if len(count) < minColors {
		return nil, fmt.Errorf("%d colours: %w", len(count), errEmpty)
	}
	frequent := make([]color.RGBA, 0, len(count))
	for c := range count {
		frequent = append(frequent, c)
	}
	slices.SortFunc(frequent, func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B), cmp.Compare(a.A, b.A))
	})
	var palette color.Palette
	for _, c := range frequent[:min(len(frequent), maxColors)] {
		palette = append(palette, c)
	}
	index := make(map[color.RGBA]uint8, len(frequent))
	for _, c := range frequent {
		index[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(image.Rect(0, 0, img.Bounds().Dx(), img.Bounds().Dy()), palette)
	for i, c := range pixels {
		out.Pix[i] = index[c]
	}
	var to bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&to, out); err != nil {
		return nil, err
	}
	return to.Bytes(), nil
}
