// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// IdleLimit is the largest value of Idle, in percent of a core: connections without
// traffic cost nothing.
const IdleLimit = 1.0

// Population has the values for a number of connections.
type Population struct {
	Connections int `json:"connections"`
	// Requests per second on all connections together: 64 bytes and an answer of 64
	// bytes.
	RequestsTCP []float64 `json:"requests_tcp"`
	RequestsSMC []float64 `json:"requests_smc"`
	// Memory in MiB by which all processes of both hosts grew.
	MemoryTCP []float64 `json:"memory_tcp"`
	MemorySMC []float64 `json:"memory_smc"`
	// Idle is the CPU time of all processes of both hosts without traffic, in percent of
	// a core. Only the largest number of connections has it.
	IdleTCP []float64 `json:"idle_tcp,omitempty"`
	IdleSMC []float64 `json:"idle_smc,omitempty"`
	// Pairs is the number of pairs of hosts, with separate stacks, that share the
	// connections, because one stack may not have enough descriptors. 0 means one.
	Pairs int `json:"pairs,omitempty"`
	// Skipped says why values, or values of some rounds, are missing.
	Skipped string `json:"skipped,omitempty"`
}

// idleMet says whether idle connections meet IdleLimit, without the time that the
// programs use over TCP.
func (p *Population) idleMet() string {
	switch {
	case len(p.IdleSMC) == 0:
		return "-"
	case Median(p.IdleSMC)-Median(p.IdleTCP) <= IdleLimit:
		return "target"
	}
	return "no"
}

// populationHead are the columns of the table of Connections.
var populationHead = []string{"connections", "requests/s, TCP", "SMC-R", "ratio", "MiB, TCP", "SMC-R", "idle CPU %, TCP", "SMC-R", "at most", "met"}

// cells are the cells of the table for a number of connections.
func (p *Population) cells() []string {
	of := func(values []float64) string {
		if len(values) == 0 {
			return "-"
		}
		return fmt.Sprintf("%s (%s)", format(Median(values)), spread(values))
	}
	ratio, limit := "-", "-"
	if len(p.RequestsSMC) > 0 {
		ratio = format(Round(Median(Ratios(p.RequestsTCP, p.RequestsSMC))))
	}
	if len(p.IdleSMC) > 0 {
		limit = fmt.Sprintf("%g", IdleLimit)
	}
	return []string{fmt.Sprint(p.Connections), of(p.RequestsTCP), of(p.RequestsSMC), ratio,
		of(p.MemoryTCP), of(p.MemorySMC), of(p.IdleTCP), of(p.IdleSMC), limit, p.idleMet()}
}

// printConnections writes the table of Connections.
func (r *Result) printConnections(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, strings.Join(populationHead, "\t")+"\t")
	for _, p := range r.Connections {
		fmt.Fprintln(tw, strings.Join(p.cells(), "\t")+"\t")
	}
	return tw.Flush()
}

// markdownConnections writes the same in Markdown.
func (r *Result) markdownConnections(b *strings.Builder) {
	if len(r.Connections) == 0 {
		return
	}
	fmt.Fprintf(b, "\n| %s |\n|--:%s|---|\n", strings.Join(populationHead, " | "), strings.Repeat("|--:", len(populationHead)-2))
	for _, p := range r.Connections {
		fmt.Fprintf(b, "| %s |\n", strings.Join(p.cells(), " | "))
	}
}
