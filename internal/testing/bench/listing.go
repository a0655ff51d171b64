// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A Listing has the cost of one command on a table of one size, with a value for each
// round. Times are in ms, memory is in MiB.
type Listing struct {
	Command string // the command line
	Rows    int    // 0 for a command that lists nothing
	Wall    []float64
	CPU     []float64 // user and system time of the command alone
	Memory  []float64 // largest resident memory
	C       *CTool    // the program of smc-tools with this name, or nil
}

// A CTool has the measured values of a program of smc-tools: medians of seven runs of
// /usr/bin/time in a Linux 6.12 guest under software emulation (QEMU without KVM) with 40
// open SMC connections.
type CTool struct {
	Rows         int
	Wall, Memory float64
}

// The programs of smc-tools 1.8 that print the same as listings of smcr. They were
// measured on another, slower machine, so they only show the order of magnitude.
var (
	CToolLinkGroups  = CTool{Rows: 40, Wall: 60, Memory: 2068. / 1024} // smcr linkgroup show
	CToolConnections = CTool{Rows: 40, Wall: 50, Memory: 1724. / 1024} // smcss -a
)

// PrintListings writes a table of the medians with the spread of the rounds. Memory below
// floor, in MiB, is not known: the kernel counts the memory that the parent process had
// at the start.
func PrintListings(w io.Writer, listings []*Listing, floor float64) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "rows\ttime ms\t(min-max)\tCPU ms\tmemory MiB\tC: time ms\tmemory MiB\t  command")
	for _, l := range listings {
		rows, c := "-", "-\t-"
		if l.Rows > 0 {
			rows = fmt.Sprint(l.Rows)
		}
		if l.C != nil {
			c = format(l.C.Wall) + "\t" + format(l.C.Memory)
		}
		memory := format(Median(l.Memory))
		if Median(l.Memory) <= floor {
			memory = "<" + format(floor)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", rows, format(Median(l.Wall)), spread(l.Wall), format(Median(l.CPU)), memory, c, l.Command)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "C: smc-tools 1.8 on another machine, with %d connections open:\na Linux guest under software emulation, so its times are no measure of this one.\n", CToolConnections.Rows)
	return err
}
