// SPDX-License-Identifier: Apache-2.0

package smctools_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/built"
	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// build compiles the program and links it to all its names.
func build(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := built.Programs(t.Context(), dir, "smcr/cmd/smcr"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"smcd", "smcss", "smc_pnet", "smc_run", "smc_rnics", "smc_chk", "smc_dbg"} {
		if err := os.Symlink("smcr", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// inNamespace runs fn on a thread in a new network namespace with the one device of the
// recorded machine. Programs that fn starts are in the same namespace.
func inNamespace(t testing.TB, fn func()) {
	t.Helper()
	netnstest.Require(t)
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, and the namespace ends with the thread.
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			h, err := netlink.NewHandle()
			if err != nil {
				return err
			}
			defer h.Close()
			eth0 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 3}, PeerName: "peer0"}
			if err := h.LinkAdd(eth0); err != nil {
				return err
			}
			addr, err := netlink.ParseAddr("10.77.0.1/24")
			if err != nil {
				return err
			}
			if err := errors.Join(h.AddrAdd(eth0, addr), h.LinkSetUp(eth0)); err != nil {
				return err
			}
			fn()
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// leftOut gives the reasons why some recorded commands are not repeated.
var leftOut = map[string]string{
	"p0nomod-027": "the preload library was not installed; smc_run has none now",
	"p0nomod-028": "the preload library was not installed; smc_run has none now",
	"p0nomod-029": "python, not of smc-tools",
	"p3live-240":  "env with the recorded environment; TestParseRun has the variables",
	"p3live-241":  "the preload library was not installed; smc_run has none now",
	"p3live-242":  "the preload library was not installed; smc_run has none now",
	"p3live-252":  "ended by the recorder's limit; package smcchk tests connections",
	"p6end-003":   "rdma, not of smc-tools",
}

// onlyStrict are command lines that have another meaning for smcr unless
// SMCR_COMPAT=strict is set: an empty one, --help, --version, an unknown word (also
// behind an object), and seid.
var onlyStrict = map[string]bool{
	"p0nomod-011": true, "p0nomod-013": true,
	"p3live-001": true, "p3live-004": true, "p3live-006": true, "p3live-074": true,
	"p3live-011": true, "p3live-022": true, "p3live-034": true, "p3live-064": true, "p3live-068": true,
	"p3live-070": true, "p3live-071": true, "p3live-072": true, "p3live-073": true,
}

// changed corrects the recordings where the programs of smcr differ on purpose.
// docs/smc-tools.md gives the reasons.
var changed = map[string]func(r *recording){
	"p2user-008": func(r *recording) { r.err = "Error: Operation not permitted\n" },
	"p2user-009": func(r *recording) { r.err = "Error: Operation not permitted\n" },
	"p2user-020": func(r *recording) { r.status, r.err = 1, "smc_pnet: Operation not permitted\n" },
	"p3live-246": func(r *recording) { r.err = "" },
}

// garbage matches a FID that smc-tools printed from memory that it had not initialized.
var garbage = regexp.MustCompile(`(?m)^(eth0 +rxe0 .{30,}(?:Yes|No)   )[0-9a-f]{4}(  {12,})`)

// TestGolden repeats the recorded commands of smc-tools and checks that output and exit
// status are the same.
func TestGolden(t *testing.T) {
	bin, tmp := build(t), t.TempDir()
	socket := filepath.Join(tmp, "kernel.sock")
	replay := newReplayer(t, socket)
	all := map[string][]*recording{}
	for _, phase := range phases {
		all[phase] = readRecordings(t, phase)
		replay.learn(all[phase])
	}
	run := 0
	inNamespace(t, func() {
		for _, phase := range phases {
			for _, r := range all[phase] {
				if leftOut[r.name] != "" {
					continue
				}
				// Root and the unprivileged user have separate files for reset
				// statistics.
				cache := filepath.Join(tmp, "cache-"+map[bool]string{true: "user", false: "root"}[phase == "p2user"])
				if r.argv[0] == "cat" {
					got, err := os.ReadFile(cache)
					if diff := cmp.Diff(r.out, string(got)); diff != "" || err != nil {
						t.Errorf("%s: %v, cache file (-smc-tools +smcr):\n%s", r.name, err, diff)
					}
					run++
					continue
				}
				if r.argv[0] == "setpriv" {
					// The kernel gave the recorded answers to an unprivileged user.
					r.argv = r.argv[slices.Index(r.argv, "--clear-groups")+1:]
				}
				if f := changed[r.name]; f != nil {
					f(r)
				}
				r.out = garbage.ReplaceAllString(r.out, "${1}0000${2}")
				r.err = strings.ReplaceAll(r.err, "SMCTOOLS/", bin+"/")
				replay.play(r)
				env := []string{"SMCR_BACKEND=unix:" + socket, "SMCR_STATS_CACHE=" + cache}
				if onlyStrict[r.name] {
					env = append(env, "SMCR_COMPAT=strict")
				}
				out, errOut, status := execute(t, bin, r.argv, env...)
				run++
				for _, x := range []struct{ what, want, got string }{{"output", r.out, out}, {"errors", r.err, errOut}} {
					if diff := cmp.Diff(x.want, x.got); diff != "" {
						t.Errorf("%s: %q: %s (-smc-tools +smcr):\n%s", r.name, r.argv, x.what, diff)
					}
				}
				if status != r.status {
					t.Errorf("%s: %q: exit status %d, want %d", r.name, r.argv, status, r.status)
				}
			}
		}
	})
	if t.Log(run, "commands"); run < 400 && !t.Skipped() {
		t.Errorf("only %d commands were repeated", run)
	}
}

// execute runs a program by one of its names.
func execute(t testing.TB, bin string, argv []string, env ...string) (out, errOut string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkind.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, argv[0]), argv[1:]...)
	cmd.Env = append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=/"}, env...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("%q: %v", argv, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}
