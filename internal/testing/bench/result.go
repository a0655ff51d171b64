// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"
)

// Schema is the version of Result in JSON. New fields do not change it, because existing
// fields keep their meaning.
const Schema = 1

// Result has everything that one run has measured. It has no host name, user or path, so
// it can be published.
type Result struct {
	Schema int `json:"schema"`
	// Date is the end of the run, UTC.
	Date time.Time `json:"date"`
	// Commit is the short hash of the measured source, with "-dirty" if the tree had
	// changes.
	Commit  string  `json:"commit"`
	Command string  `json:"command"`
	Machine Machine `json:"machine"`
	Rounds  int     `json:"rounds"`
	// Seconds of each measurement.
	Seconds    float64 `json:"seconds"`
	ServeFlags string  `json:"serve_flags,omitempty"`
	// Against is the version of another build of smcr that was measured in turn with this one.
	Against string `json:"against,omitempty"`
	// Forced: measured with -force although others used the CPU.
	Forced bool `json:"forced,omitempty"`
	// OthersMax is the largest share of the machine's CPU, 0 to 1, that others used
	// during a valid measurement.
	OthersMax float64 `json:"others_max"`

	Rows        []*Row        `json:"rows"`
	Sizes       []*Size       `json:"sizes,omitempty"`
	Connections []*Population `json:"connections,omitempty"`
	Shares      []*Share      `json:"shares,omitempty"`
	Areas       []*Area       `json:"areas,omitempty"`
}

// Machine describes the machine of a result.
type Machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	Go     string `json:"go"`
}

// Size has the values for a message size, one for each round.
type Size struct {
	Bytes int `json:"bytes"`
	// Throughput in MiB/s of writes of Bytes on one connection.
	ThroughputTCP []float64 `json:"throughput_tcp"`
	ThroughputSMC []float64 `json:"throughput_smc"`
	// RoundTrip in µs: a message of Bytes and its echo. Large messages have no value.
	RoundTripTCP []float64 `json:"round_trip_tcp,omitempty"`
	RoundTripSMC []float64 `json:"round_trip_smc,omitempty"`
}

// Share is the CPU time of one kind of process for each unit of work.
type Share struct {
	// Row is the ID of the row whose traffic this is.
	Row string `json:"row"`
	// Transport is "tcp" or "smc".
	Transport string `json:"transport"`
	// Side is "client" or "server", Component "program" or "stack".
	Side      string `json:"side"`
	Component string `json:"component"`
	// Unit of User and System: "s/GiB" or "µs/request".
	Unit   string  `json:"unit"`
	User   float64 `json:"user"`
	System float64 `json:"system"`
}

// Area is the share of an area of the code in the CPU time of a Go program with an
// embedded stack.
type Area struct {
	// Row is the ID of the row whose traffic this is.
	Row string `json:"row"`
	// Side is "client" or "server".
	Side string `json:"side"`
	// Name is one of AreaNames.
	Name string `json:"name"`
	// Share is 0 to 1.
	Share float64 `json:"share"`
}

// FileName returns DATE-COMMIT.json.
func (r *Result) FileName() string {
	return r.Date.UTC().Format("2006-01-02") + "-" + r.Commit + ".json"
}

// Write writes the result to a file in dir and returns the name of the file. It makes dir
// if necessary.
func (r *Result) Write(dir string) (string, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	name := filepath.Join(dir, r.FileName())
	if err := os.WriteFile(name, append(compact(b), '\n'), 0o644); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return name, nil
}

// compact puts each array of numbers on one line.
func compact(b []byte) []byte {
	out := make([]byte, 0, len(b))
	inString, numbers := false, false
	for i, c := range b {
		switch {
		case c == '"' && (i == 0 || b[i-1] != '\\'):
			inString = !inString
		case !inString && c == '[':
			numbers = arrayOfNumbers(b[i+1:])
		case !inString && c == ']':
			numbers = false
		case numbers && (c == ' ' || c == '\n'):
			continue
		}
		out = append(out, c)
	}
	return out
}

// arrayOfNumbers reports whether the text after a bracket begins with a number.
func arrayOfNumbers(b []byte) bool {
	for _, c := range b {
		switch {
		case c == ' ' || c == '\n':
		case c >= '0' && c <= '9' || c == '-':
			return true
		default:
			return false
		}
	}
	return false
}

// Read reads a result from a file.
func Read(name string) (*Result, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r := &Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", filepath.Base(name), err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("bench: %s has schema %d, not %d: measure again with make bench", filepath.Base(name), r.Schema, Schema)
	}
	return r, nil
}

// ErrNoResult means that a directory has no result.
var ErrNoResult = errors.New("bench: no result here: run make bench first")

// Newest returns the result in dir with the latest Date, and its file.
func Newest(dir string) (*Result, string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, "", fmt.Errorf("bench: %w", err)
	}
	var newest *Result
	var file string
	for _, name := range names {
		r, err := Read(name)
		if err != nil {
			return nil, "", err
		}
		if newest == nil || r.Date.After(newest.Date) {
			newest, file = r, name
		}
	}
	if newest == nil {
		return nil, "", ErrNoResult
	}
	return newest, file, nil
}

// Round rounds to four significant digits: measurements are not more exact.
func Round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
