// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Counters returns counters of group TcpExt of /proc/net/netstat of the host, by their names. The error is an *os.PathError, or says which
// name the kernel does not have.
func (h *Host) Counters(names ...string) (map[string]int, error) {
	var text []byte
	if err := h.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	}); err != nil {
		return nil, err
	}
	return counters(string(text), names)
}

// counters returns those of /proc/net/netstat: a line with names, and one with the values.
func counters(text string, names []string) (map[string]int, error) {
	const group = "TcpExt:"
	all := map[string]int{}
	var columns []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if columns == nil {
			columns = fields
			continue
		}
		for i, f := range fields[1:min(len(fields), len(columns))] {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, fmt.Errorf("netnstest: counter %s: %w", columns[i+1], err)
			}
			all[columns[i+1]] = n
		}
	}
	found := map[string]int{}
	for _, name := range names {
		n, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("netnstest: the kernel has no counter %s", name)
		}
		found[name] = n
	}
	return found, nil
}
