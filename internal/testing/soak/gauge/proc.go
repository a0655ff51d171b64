// SPDX-License-Identifier: Apache-2.0

package gauge

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sample is what a process has at a moment.
type Sample struct {
	Descriptors int   `json:"descriptors"`
	Threads     int   `json:"threads"`
	RSS         int64 `json:"rss"`    // resident memory in bytes
	Mapped      int64 `json:"mapped"` // private memory that can be written to, in bytes, also pages that nobody wrote to
	// Goroutines and Heap are 0 if the process does not tell them. Heap is what the
	// garbage collector keeps, in bytes.
	Goroutines int   `json:"goroutines,omitempty"`
	Heap       int64 `json:"heap,omitempty"`
	// Entries is what [Entries] counts. It is 0 if nobody has asked.
	Entries int `json:"entries,omitempty"`
}

// Of reads from /proc what a process has. The error is fs.ErrNotExist if there is no such
// process.
func Of(pid int) (Sample, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return Sample{}, fmt.Errorf("gauge: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return Sample{}, fmt.Errorf("gauge: %w", err)
	}
	s := Sample{Descriptors: len(fds)}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		n, _ := strconv.ParseInt(f[0], 10, 64)
		switch name {
		case "Threads":
			s.Threads = int(n)
		case "VmRSS":
			s.RSS = n << 10
		case "VmData":
			s.Mapped = n << 10
		}
	}
	if s.Threads == 0 {
		return s, fmt.Errorf("gauge: process %d has no threads: %w", pid, os.ErrNotExist)
	}
	return s, nil
}

// Kernel returns the memory in bytes that the kernel has for its own objects and cannot
// reclaim (SUnreclaim of /proc/meminfo). It is of the whole machine.
func Kernel() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("gauge: %w", err)
	}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) == 3 && f[0] == "SUnreclaim:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("gauge: /proc/meminfo: %w", err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("gauge: /proc/meminfo has no SUnreclaim")
}
