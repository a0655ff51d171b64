// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Bounds that hold with every fault.
const (
	// HangTime is how long a connection may make no progress before it ends.
	HangTime = 15 * time.Second
	// BackTime is how soon after a fault new connections are SMC-R again.
	BackTime = 15 * time.Second
	// SettleTime is how soon nothing remains of connections that have ended.
	SettleTime = 15 * time.Second
)

// ResultsVariable names the environment variable with the file to which rows are added.
const ResultsVariable = "SMCR_FAULTS_RESULTS"

// A Row says what happened with a fault.
type Row struct {
	Fault   string `json:"fault"`
	Traffic string `json:"traffic"`
	// Runs is how often the fault was made, and Conns how many connections there were
	// meanwhile.
	Runs  int `json:"runs"`
	Conns int `json:"connections"`
	// Bytes counts both directions, as far as they arrived.
	Bytes int64 `json:"bytes"`
	// SMC and TCP count what carried the connections, as smcr run reports it, and Failed the
	// connections that ended with an error.
	SMC    int `json:"smc"`
	TCP    int `json:"tcp"`
	Failed int `json:"failed"`
	// Corrupted, Hung and Leaked must be 0: connections with wrong or missing bytes,
	// connections or programs without progress, and runs after which something remained.
	Corrupted int `json:"corrupted"`
	Hung      int `json:"hung"`
	Leaked    int `json:"leaked"`
	// Outcome is what must happen, in words.
	Outcome string `json:"outcome,omitempty"`
}

// Add adds the numbers of another row.
func (r *Row) Add(o Row) {
	r.Runs += o.Runs
	r.Conns += o.Conns
	r.Bytes += o.Bytes
	r.SMC += o.SMC
	r.TCP += o.TCP
	r.Failed += o.Failed
	r.Corrupted += o.Corrupted
	r.Hung += o.Hung
	r.Leaked += o.Leaked
}

// Good reports whether nothing happened that must not.
func (r *Row) Good() bool { return r.Corrupted == 0 && r.Hung == 0 && r.Leaked == 0 }

// Write adds the row to the file of [ResultsVariable]. Without the variable it does
// nothing.
func (r *Row) Write() error {
	name := os.Getenv(ResultsVariable)
	if name == "" || r.Runs == 0 {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	defer f.Close()
	if err := json.NewEncoder(f).Encode(r); err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	return f.Close()
}

// Read returns the rows of a file of results. Rows of the same fault and traffic are
// added up.
func Read(in io.Reader) ([]Row, error) {
	var rows []Row
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r Row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("faults: %w in %q", err, lines.Text())
		}
		i := slices.IndexFunc(rows, func(o Row) bool { return o.Fault == r.Fault && o.Traffic == r.Traffic })
		if i < 0 {
			rows = append(rows, r)
			continue
		}
		rows[i].Add(r)
		rows[i].Outcome = cmp.Or(r.Outcome, rows[i].Outcome)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("faults: %w", err)
	}
	return rows, nil
}

// Table returns the rows as a table of Markdown, sorted, with the sums in the last line.
func Table(rows []Row) string {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Traffic, b.Traffic), cmp.Compare(a.Fault, b.Fault))
	})
	var b strings.Builder
	b.WriteString("| fault | traffic | runs | connections | SMC-R | TCP | failed | bytes | corrupted | hung | leaked | what must happen |\n")
	b.WriteString("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n")
	line := func(r Row) {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %s |\n",
			r.Fault, r.Traffic, r.Runs, r.Conns, r.SMC, r.TCP, r.Failed, r.Bytes, r.Corrupted, r.Hung, r.Leaked, r.Outcome)
	}
	sum := Row{Fault: "**all**"}
	for _, r := range rows {
		line(r)
		sum.Add(r)
	}
	line(sum)
	return b.String()
}
