// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg/vgsvg"

	"smcr/internal/testing/bench"
)

func main() {
	results := flag.String("results", "bench/results", "`directory` of the results; the newest counts")
	document := flag.String("document", "docs/performance.md", "`file` whose table is replaced")
	svg := flag.String("svg", "docs/performance", "`directory` of the plots")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*results, *document, *svg); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(results, document, svg string) error {
	r, file, err := bench.Newest(results)
	if err != nil {
		return err
	}
	drawn, err := drawAll(r)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	old, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	text, err := bench.Replace(old, r.Markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	if err := os.MkdirAll(svg, 0o755); err != nil {
		return err
	}
	for _, d := range drawn {
		if err := os.WriteFile(filepath.Join(svg, d.name+".svg"), d.svg, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(document, text, 0o644); err != nil {
		return err
	}
	fmt.Printf("    %s: %d plots in %s, table in %s\n", filepath.Base(file), len(drawn), svg, document)
	return nil
}

// drawing is the file of a plot.
type drawing struct {
	name string // without .svg
	svg  []byte
}

// errIncomplete means that some rows of the result were not measured.
var errIncomplete = errors.New("the result has nothing for a plot: make bench measures all rows and sweeps")

// plots are the files, in the order of the document.
var plots = []struct {
	name          string
	width, height font.Length // in points
	make          func(*bench.Result) (*plot.Plot, error)
}{
	{"targets", 560, 380, targets},
	{"throughput", 560, 340, throughput},
	{"roundtrip", 560, 340, roundTrip},
	{"requests", 560, 340, requests},
	{"memory", 560, 340, memory},
	{"time-iperf3", 560, 240, shares("iperf3-1500")},
	{"time-roundtrip", 560, 240, shares("roundtrip")},
	{"time-wrk", 560, 240, shares("wrk")},
	{"time-areas", 560, 240, areas},
}

// drawAll draws all plots of a result.
func drawAll(r *bench.Result) ([]drawing, error) {
	var all []drawing
	for _, p := range plots {
		pl, err := p.make(r)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", p.name, err)
		}
		c := vgsvg.NewWith(vgsvg.UseWH(p.width, p.height))
		pl.Draw(canvas(c))
		var b bytes.Buffer
		if _, err := c.WriteTo(&b); err != nil {
			return nil, fmt.Errorf("plot %s: %w", p.name, err)
		}
		// The library names only one font, which not every reader has.
		svg := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
		all = append(all, drawing{p.name, svg})
	}
	return all, nil
}
