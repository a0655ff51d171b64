// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"smcr/internal/testing/bench"
)

// Colours that everyone can distinguish (Okabe and Ito).
var (
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	green  = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	sky    = color.RGBA{0x56, 0xb4, 0xe9, 0xff}
	yellow = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	pink   = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
	gray   = color.RGBA{0x99, 0x99, 0x99, 0xff}
	pale   = color.RGBA{0xdd, 0xdd, 0xdd, 0xff}
)

// margin keeps labels inside the picture if the reader's font is wider.
const margin = 8 // points

// canvas makes a white canvas.
func canvas(c vg.CanvasSizer) draw.Canvas {
	all := draw.New(c)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	return draw.Crop(all, vg.Points(margin), -vg.Points(margin), vg.Points(margin), -vg.Points(margin))
}

// newPlot makes a plot with a grid.
func newPlot(title, x, y string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Legend.Padding = vg.Points(1)
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = pale, pale
	p.Add(grid)
	return p
}

// point has the values of one position on the x axis, one for each round.
type point struct {
	x      float64
	values []float64
}

// twoLines makes a plot with two logarithmic axes: medians over kernel TCP and over
// SMC-R, with bars from the least to the largest value of the rounds.
func twoLines(title, x, y string, tcp, smc []point, ticks plot.Ticker) (*plot.Plot, error) {
	p := newPlot(title, x, y)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, decades{}
	p.Legend.Top, p.Legend.Left = true, true
	least, most := math.Inf(1), 0.0
	for _, series := range []struct {
		name   string
		points []point
		color  color.Color
		shape  draw.GlyphDrawer
	}{{"kernel TCP", tcp, blue, draw.CircleGlyph{}}, {"SMC-R", smc, orange, draw.SquareGlyph{}}} {
		var s spread
		for _, pt := range series.points {
			// Zero has no logarithm.
			values := slices.DeleteFunc(slices.Clone(pt.values), func(v float64) bool { return v <= 0 })
			if len(values) == 0 {
				continue
			}
			m := bench.Median(values)
			lo, hi := slices.Min(values), slices.Max(values)
			s.XYs = append(s.XYs, plotter.XY{X: pt.x, Y: m})
			s.YErrors = append(s.YErrors, struct{ Low, High float64 }{m - lo, hi - m})
			least, most = min(least, lo), max(most, hi)
		}
		if len(s.XYs) == 0 {
			return nil, errIncomplete
		}
		line, dots, err := plotter.NewLinePoints(s)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewYErrorBars(s)
		if err != nil {
			return nil, err
		}
		line.Color, dots.Color, bars.Color, dots.Shape = series.color, series.color, series.color, series.shape
		line.Width = vg.Points(1.5)
		p.Add(bars, line, dots)
		p.Legend.Add(series.name, line, dots)
	}
	p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = 10 * p.Y.Min
	}
	return p, nil
}

// spread is a line of points with bars for the range of the rounds.
type spread struct {
	plotter.XYs
	plotter.YErrors
}

// decades sets ticks at powers of ten, with normal numbers.
type decades struct{}

func (decades) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		for n := 1; n < 10; n++ {
			v := float64(n) * math.Pow(10, e)
			// Rounding errors of the logarithm must not remove the outermost ticks.
			if v < least*0.999 || v > most*1.001 {
				continue
			}
			t := plot.Tick{Value: v}
			if n == 1 {
				t.Label = strconv.FormatFloat(v, 'g', -1, 64)
				if v >= 1 && v < 1e9 {
					t.Label = thousands(int(math.Round(v)))
				}
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// thousands separates groups of three digits.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// at puts ticks at the measured positions.
func at(points []point, label func(float64) string) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, p := range points {
		ticks = append(ticks, plot.Tick{Value: p.x, Label: label(p.x)})
	}
	return ticks
}

// byteSize prints a number of bytes in the largest unit that divides it.
func byteSize(v float64) string {
	n := int(v)
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func throughput(r *bench.Result) (*plot.Plot, error) {
	var tcp, smc []point
	for _, s := range r.Sizes {
		tcp, smc = append(tcp, point{float64(s.Bytes), s.ThroughputTCP}), append(smc, point{float64(s.Bytes), s.ThroughputSMC})
	}
	return twoLines("Throughput of one connection, MTU 1500", "size of each write", "MiB/s", tcp, smc, at(tcp, byteSize))
}

func roundTrip(r *bench.Result) (*plot.Plot, error) {
	var tcp, smc []point
	for _, s := range r.Sizes {
		if len(s.RoundTripTCP) > 0 {
			tcp, smc = append(tcp, point{float64(s.Bytes), s.RoundTripTCP}), append(smc, point{float64(s.Bytes), s.RoundTripSMC})
		}
	}
	return twoLines("Round trip of a message and its echo, MTU 1500", "size of the message", "µs (less is better)", tcp, smc, at(tcp, byteSize))
}

func population(r *bench.Result, title, y string, f func(*bench.Population) (tcp, smc []float64)) (*plot.Plot, error) {
	var tcp, smc []point
	for _, p := range r.Connections {
		if p.Skipped != "" {
			continue
		}
		t, s := f(p)
		tcp, smc = append(tcp, point{float64(p.Connections), t}), append(smc, point{float64(p.Connections), s})
	}
	label := func(v float64) string { return thousands(int(v)) }
	return twoLines(title, "connections", y, tcp, smc, at(tcp, label))
}

func requests(r *bench.Result) (*plot.Plot, error) {
	return population(r, "Requests of 64 bytes, one at a time on each connection", "requests/s",
		func(p *bench.Population) (tcp, smc []float64) { return p.RequestsTCP, p.RequestsSMC })
}

func memory(r *bench.Result) (*plot.Plot, error) {
	return population(r, "Memory of all processes on both hosts", "MiB (less is better)",
		func(p *bench.Population) (tcp, smc []float64) { return p.MemoryTCP, p.MemorySMC })
}
