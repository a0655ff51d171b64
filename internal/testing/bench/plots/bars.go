// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"smcr/internal/testing/bench"
)

// targets draws a bar for each row with a ratio: SMC-R as a share of kernel TCP, for
// times and costs the inverse, so that more is better. Marks show the target and the aim.
func targets(r *bench.Result) (*plot.Plot, error) {
	var names []string
	var reached plotter.Values
	var target, aim plotter.XYs
	// The first row must be at the top.
	for _, row := range slices.Backward(r.Rows) {
		if row.Absolute || row.Value <= 0 {
			continue
		}
		share := func(v float64) float64 {
			if row.LessIsBetter && v > 0 {
				return 1 / v
			}
			return v
		}
		y := float64(len(names))
		names = append(names, row.ID)
		reached = append(reached, share(row.Value))
		if row.Target > 0 {
			target = append(target, plotter.XY{X: share(row.Target), Y: y})
		}
		if row.Aim > 0 {
			aim = append(aim, plotter.XY{X: share(row.Aim), Y: y})
		}
	}
	if len(names) == 0 || len(target) == 0 || len(aim) == 0 {
		return nil, errIncomplete
	}
	p := newPlot("SMC-R in user space as a share of kernel TCP", "1 = as fast, or as cheap, as kernel TCP", "")
	bars, err := plotter.NewBarChart(reached, vg.Points(13))
	if err != nil {
		return nil, err
	}
	bars.Horizontal, bars.Color, bars.LineStyle.Width = true, orange, 0
	p.Add(bars)
	p.Legend.Add("measured", bars)
	for _, mark := range []struct {
		name  string
		at    plotter.XYs
		color color.Color
		shape draw.GlyphDrawer
	}{{"at least", target, blue, draw.PyramidGlyph{}}, {"aim", aim, green, draw.CircleGlyph{}}} {
		s, err := plotter.NewScatter(mark.at)
		if err != nil {
			return nil, err
		}
		s.Color, s.Shape, s.Radius = mark.color, mark.shape, vg.Points(4)
		p.Add(s)
		p.Legend.Add(mark.name, s)
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = 0, max(p.X.Max, 1.05)
	one := plotter.XYs{{X: 1, Y: p.Y.Min}, {X: 1, Y: p.Y.Max}}
	line, err := plotter.NewLine(one)
	if err != nil {
		return nil, err
	}
	line.Color, line.Dashes = gray, []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(line)
	below(p)
	return p, nil
}

// below puts the legend at the right, where the bars leave room.
func below(p *plot.Plot) {
	p.Legend.Top, p.Legend.Left = true, false
	p.Legend.XOffs = vg.Points(-4)
	// An empty place above the first bar.
	p.Y.Max += 1.8
}

// kinds are the parts of a bar, from left to right.
var kinds = []struct {
	component string
	system    bool
	color     color.Color
}{
	{"program", false, sky}, {"program", true, blue},
	{"stack", false, yellow}, {"stack", true, orange},
}

// shares draws the CPU time of a unit of work, by process.
func shares(row string) func(*bench.Result) (*plot.Plot, error) {
	return func(r *bench.Result) (*plot.Plot, error) {
		// From the bottom of the plot to its top.
		lanes := []struct{ transport, side, name string }{
			{"smc", "client", "SMC-R, client"}, {"smc", "server", "SMC-R, server"},
			{"tcp", "client", "TCP, client"}, {"tcp", "server", "TCP, server"},
		}
		unit := ""
		var names []string
		for _, l := range lanes {
			names = append(names, l.name)
		}
		var charts []*plotter.BarChart
		for _, k := range kinds {
			values := make(plotter.Values, len(lanes))
			for _, s := range r.Shares {
				if s.Row != row || s.Component != k.component {
					continue
				}
				unit = s.Unit
				for i, l := range lanes {
					if l.transport != s.Transport || l.side != s.Side {
						continue
					}
					if k.system {
						values[i] += s.System
					} else {
						values[i] += s.User
					}
				}
			}
			c, err := plotter.NewBarChart(values, vg.Points(20))
			if err != nil {
				return nil, err
			}
			c.Horizontal, c.Color, c.LineStyle.Width = true, k.color, 0
			if len(charts) > 0 {
				c.StackOn(charts[len(charts)-1])
			}
			charts = append(charts, c)
		}
		if unit == "" {
			return nil, errIncomplete
		}
		p := newPlot("CPU time, "+row, unit, "")
		for i, c := range charts {
			p.Add(c)
			where := "user"
			if kinds[i].system {
				where = "kernel"
			}
			p.Legend.Add(fmt.Sprintf("%s, %s", kinds[i].component, where), c)
		}
		p.NominalY(names...)
		p.X.Min = 0
		// Room for the legend at the right of the bars.
		p.X.Max *= 1.35
		p.Legend.Top, p.Legend.Left = true, false
		p.Legend.XOffs = vg.Points(-4)
		return p, nil
	}
}

// areaColors are the colours of bench.AreaNames.
var areaColors = []color.Color{orange, yellow, blue, green, sky, pink, gray, pale}

// areas draws the CPU time of programs with embedded stacks, by area of the code.
func areas(r *bench.Result) (*plot.Plot, error) {
	lanes := []struct{ row, side, name string }{
		{"goapi-roundtrip", "client", "round trip, client"}, {"goapi-roundtrip", "server", "round trip, server"},
		{"goapi", "client", "128 KiB, client"}, {"goapi", "server", "128 KiB, server"},
	}
	if len(r.Areas) == 0 {
		return nil, errIncomplete
	}
	p := newPlot("Go API over SMC-R: CPU time by area of the code", "% of the CPU time of the process", "")
	var last *plotter.BarChart
	for i, name := range bench.AreaNames {
		values := make(plotter.Values, len(lanes))
		for _, a := range r.Areas {
			for n, l := range lanes {
				if a.Name == name && a.Row == l.row && a.Side == l.side {
					values[n] = 100 * a.Share
				}
			}
		}
		c, err := plotter.NewBarChart(values, vg.Points(20))
		if err != nil {
			return nil, err
		}
		c.Horizontal, c.Color, c.LineStyle.Width = true, areaColors[i], 0
		if last != nil {
			c.StackOn(last)
		}
		last = c
		p.Add(c)
		p.Legend.Add(name, c)
	}
	var names []string
	for _, l := range lanes {
		names = append(names, l.name)
	}
	p.NominalY(names...)
	// Room for the legend at the right of the bars.
	p.X.Min, p.X.Max = 0, 175
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"}, {Value: 75, Label: "75"}, {Value: 100, Label: "100"}}
	p.Legend.Top, p.Legend.Left = true, false
	p.Legend.XOffs = vg.Points(-4)
	return p, nil
}
