// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// resident returns the resident memory of a process in KiB, each page divided
// among the processes that share it (Pss of /proc/PID/smaps_rollup).
func resident(pid int) (float64, error) {
	name := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			return strconv.ParseFloat(f[1], 64)
		}
	}
	return 0, fmt.Errorf("%s has no Pss", name)
}
