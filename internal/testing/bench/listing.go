// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A Listing is what one command cost on a table of one size: a value for each
// round. Times are in ms, memory is in MiB.
type Listing struct {
	Command string // as typed
	Rows    int    // 0 for a command that lists nothing
	Wall    []float64
	CPU     []float64 // user and system, of the command alone
	Memory  []float64 // most resident memory
	C       *CTool    // what smc-tools' program of that name takes, or nil
}

// A CTool is what was measured of a program of smc-tools, once: medians of seven
// runs of /usr/bin/time in a Linux 6.12 guest under software emulation (QEMU
// without KVM) with 40 SMC connections open.
type CTool struct {
	Rows         int
	Wall, Memory float64
}

// The programs of smc-tools 1.8 that print what listings of smcr do. The two are
// from another, slower machine than any that runs this benchmark: they show the
// order of magnitude.
var (
	CToolLinkGroups  = CTool{Rows: 40, Wall: 60, Memory: 2068. / 1024} // smcr linkgroup show
	CToolConnections = CTool{Rows: 40, Wall: 50, Memory: 1724. / 1024} // smcss -a
)

// PrintListings writes the listings as a table of medians with the spread of the
// rounds. Below floor, in MiB, memory cannot be told: the kernel charges a process
// with what its parent had when it was started.
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
