// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// IdleLimit is what Idle may be, in percent of a core: connections on which
// nobody sends cost nothing.
const IdleLimit = 1.0

// Population is a number of connections at a time.
type Population struct {
	Connections int `json:"connections"`
	// Requests of 64 bytes and as many back, per second, on all together.
	RequestsTCP []float64 `json:"requests_tcp"`
	RequestsSMC []float64 `json:"requests_smc"`
	// Memory in MiB of all processes of both hosts: what they grew by.
	MemoryTCP []float64 `json:"memory_tcp"`
	MemorySMC []float64 `json:"memory_smc"`
	// Idle is the CPU time of all processes of both hosts while nobody sends, in
	// percent of a core. Only of the largest number.
	IdleTCP []float64 `json:"idle_tcp,omitempty"`
	IdleSMC []float64 `json:"idle_smc,omitempty"`
	// Pairs is the number of pairs of hosts, with stacks of their own, among which
	// the connections are spread because one stack may not have enough descriptors;
	// 0: one.
	Pairs int `json:"pairs,omitempty"`
	// Skipped says why there are no values, or not of each round.
	Skipped string `json:"skipped,omitempty"`
}

// idleMet says whether idle connections cost as little as they are to, beyond
// what the programs use over TCP.
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

// cells are what the table says of a number of connections.
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
