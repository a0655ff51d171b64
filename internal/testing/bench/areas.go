// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Areas of the code into which a profile of a Go program with an embedded stack is
// divided.
const (
	areaSyscalls = "system calls"
	areaWakeups  = "waking of threads"
	areaCopies   = "copying and checksums"
	areaRoCE     = "software RoCE"
	areaProtocol = "SMC-R protocol"
	areaDriver   = "driver of the stack"
	areaRuntime  = "Go: scheduler, memory, locks"
	areaRest     = "all else"
)

// AreaNames are the areas in the order of the plot.
var AreaNames = []string{areaSyscalls, areaWakeups, areaCopies, areaRoCE, areaProtocol, areaDriver, areaRuntime, areaRest}

// areas gives the area of a function by the beginning of its name. The first match
// counts.
var areas = []struct{ prefix, area string }{
	{"internal/runtime/syscall", areaSyscalls},
	{"syscall.", areaSyscalls},
	{"golang.org/x/sys/unix.", areaSyscalls},
	{"runtime.futex", areaWakeups},
	{"runtime.usleep", areaWakeups},
	{"runtime.osyield", areaWakeups},
	{"runtime.procyield", areaWakeups},
	{"runtime.epollwait", areaWakeups},
	{"runtime.memmove", areaCopies},
	{"runtime.memclr", areaCopies},
	{"hash/crc32.", areaCopies},
	{"smcr/rdmaverbs", areaRoCE},
	{"smcr/userstack/linkgroup", areaProtocol},
	{"smcr/userstack/wire", areaProtocol},
	{"smcr/userstack", areaDriver},
	{"runtime.", areaRuntime},
	{"runtime/", areaRuntime},
	{"internal/runtime/", areaRuntime},
	{"sync.", areaRuntime},
	{"sync/", areaRuntime},
	{"internal/sync.", areaRuntime},
	{"internal/poll.", areaRuntime},
	{"gcWriteBarrier", areaRuntime},
	{"aeshashbody", areaRuntime},
}

// ParseProfile adds up the output of `go tool pprof -top -nodefraction=0 -nodecount=0`
// for a CPU profile. It returns the share of each area in the order of AreaNames.
func ParseProfile(out []byte) ([]float64, error) {
	sums := make([]time.Duration, len(AreaNames))
	var total time.Duration
	table := false
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == "flat" {
			table = true
			continue
		}
		if !table || len(f) < 6 {
			continue
		}
		// A function that only calls others has 0 without a unit.
		d, err := time.ParseDuration(f[0])
		if err != nil {
			return nil, fmt.Errorf("%w of go tool pprof: %w", ErrOutput, err)
		}
		total += d
		sums[slices.Index(AreaNames, areaOf(f[5]))] += d
	}
	if total == 0 {
		return nil, fmt.Errorf("%w of go tool pprof: %.200q", ErrOutput, out)
	}
	shares := make([]float64, len(sums))
	for i, d := range sums {
		shares[i] = float64(d) / float64(total)
	}
	return shares, nil
}

func areaOf(function string) string {
	for _, a := range areas {
		if strings.HasPrefix(function, a.prefix) {
			return a.area
		}
	}
	return areaRest
}
