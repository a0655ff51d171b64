// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// runtimeDefault returns the seccomp profile that a container runtime gives a container with
// these capabilities by default: that of Docker, which is also that of containerd.
func runtimeDefault(caps []string) (*specs.LinuxSeccomp, error) {
	return seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}})
}

// localhost reads a profile of type Localhost.
func localhost(file string) (*specs.LinuxSeccomp, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var p specs.LinuxSeccomp
	return &p, json.Unmarshal(b, &p)
}

// allowed returns the system calls that a profile allows with any arguments, and those for
// which it has other rules.
func allowed(p *specs.LinuxSeccomp) (always, rules map[string]bool) {
	always, rules = map[string]bool{}, map[string]bool{}
	for _, s := range p.Syscalls {
		for _, n := range s.Names {
			if s.Action == specs.ActAllow && len(s.Args) == 0 {
				always[n] = true
			} else {
				rules[n] = true
			}
		}
	}
	return always, rules
}

// TestProfile compares the profile for programs under smcr run with the default of container
// runtimes: it allows what that allows, and pidfd_getfd.
func TestProfile(t *testing.T) {
	ours, err := localhost(filepath.Join(deployed, "base/run.json"))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := runtimeDefault(nil)
	if err != nil {
		t.Fatal(err)
	}
	if ours.DefaultAction != specs.ActErrno || theirs.DefaultAction != specs.ActErrno {
		t.Errorf("default actions %s and %s", ours.DefaultAction, theirs.DefaultAction)
	}
	have, haveRules := allowed(ours)
	want, wantRules := allowed(theirs)
	more := maps.Clone(have)
	maps.DeleteFunc(more, func(n string, _ bool) bool { return want[n] })
	if got := slices.Sorted(maps.Keys(more)); !slices.Equal(got, []string{"pidfd_getfd"}) {
		t.Errorf("it allows %q, which the default does not", got)
	}
	if !maps.Equal(haveRules, wantRules) {
		t.Errorf("rules for %q, the default has them for %q", slices.Sorted(maps.Keys(haveRules)), slices.Sorted(maps.Keys(wantRules)))
	}
	for _, s := range ours.Syscalls {
		// Sockets: all families that the default allows, up to the one before AF_ALG, and AF_SMC.
		if len(s.Args) == 1 && s.Names[0] != "socket" && !slices.ContainsFunc(theirs.Syscalls, func(d specs.LinuxSyscall) bool {
			return d.Action == s.Action && slices.Contains(d.Names, s.Names[0]) && slices.Equal(d.Args, s.Args)
		}) {
			t.Errorf("the default does not have the rule %+v", s)
		}
	}
	// What a 64-bit program cannot call is left out, and what only architectures have on which
	// smcr is not built.
	less := maps.Clone(want)
	maps.DeleteFunc(less, func(n string, _ bool) bool { return have[n] || slices.Contains(others, n) })
	if len(less) > 0 {
		t.Errorf("the default allows also %q", slices.Sorted(maps.Keys(less)))
	}
}

// others are calls of 32-bit programs, and of other architectures.
var others = []string{
	"riscv_hwprobe",
	"chown32", "fchown32", "lchown32", "getegid32", "geteuid32", "getgid32", "getgroups32", "getresgid32", "getresuid32", "getuid32",
	"setfsgid32", "setfsuid32", "setgid32", "setgroups32", "setregid32", "setresgid32", "setresuid32", "setreuid32", "setuid32",
	"clock_adjtime64", "clock_getres_time64", "clock_gettime64", "clock_nanosleep_time64", "clock_settime64", "futex_time64", "io_pgetevents_time64",
	"mq_timedreceive_time64", "mq_timedsend_time64", "ppoll_time64", "pselect6_time64", "recvmmsg_time64", "rt_sigtimedwait_time64",
	"sched_rr_get_interval_time64", "semtimedop_time64", "timer_gettime64", "timer_settime64", "timerfd_gettime64", "timerfd_settime64",
	"utimensat_time64", "fadvise64_64", "fcntl64", "fstat64", "fstatat64", "ftruncate64", "lstat64", "mmap2", "sendfile64", "stat64", "truncate64",
}
