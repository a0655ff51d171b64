// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/bench"
)

// machine describes this machine, without its name.
func machine() bench.Machine {
	m := bench.Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), CPU: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = kernelVersion(unix.ByteSliceToString(u.Release[:]))
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if model := cpuModel(string(b)); model != "" {
			m.CPU = model
		}
	}
	return m
}

var versionRE = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*`)

// kernelVersion returns the numbers of a release: the rest may contain the name of the
// machine that built it.
func kernelVersion(release string) string { return versionRE.FindString(release) }

// cpuModel returns the model from /proc/cpuinfo. Its fields are different on arm64 and
// s390x.
func cpuModel(cpuinfo string) string {
	for _, key := range []string{"model name", "vendor_id", "CPU part"} {
		for line := range strings.Lines(cpuinfo) {
			k, v, ok := strings.Cut(line, ":")
			if ok && strings.TrimSpace(k) == key {
				return strings.Join(strings.Fields(v), " ")
			}
		}
	}
	return ""
}

// commit returns the short hash of the source, with -dirty if it was changed.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
