// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/run"
	"smcr/internal/smctools/tool"

	"github.com/spf13/cobra"
)

const runUsage = "\nUsage: smc_run [ OPTIONS ] COMMAND\n\n" +
	"Run COMMAND using SMC for TCP sockets\n\n" +
	"   -d         enable debug mode\n" +
	"   -h         display this message\n" +
	"   -r <SIZE>  request receive buffer size in Bytes\n" +
	"   -t <SIZE>  request transmit buffer size in Bytes\n" +
	"   -v         display version info\n"

// limitsDir is the directory of the kernel's limits of buffer sizes.
const limitsDir = "/proc/sys/net/core"

// A runJob is what a command line of smc_run asks for.
type runJob struct {
	argv  []string
	debug bool
	sizes map[string]int // by direction, "rcv" or "snd", in bytes
}

// smcRun runs smc_run, which starts a program whose TCP connections use SMC, and returns
// the exit status of the program. It has no preload library: smcr run does the work, also for
// static programs. To raise the kernel's limits needs root.
func smcRun(ctx context.Context, e *tool.Env, args []string) int {
	j, status, done := parseRun(e, args, limitsDir)
	if done {
		return status
	}
	// smc_run of smc-tools passes these to its preload library. Programs may read them.
	for name, value := range j.environment() {
		if err := os.Setenv(name, value); err != nil {
			e.Errorf("%s: %v\n", e.Name, err)
			return 1
		}
	}
	cmd := run.NewCmd(e.Factory)
	cmd.SetArgs(j.runArgs(cmd))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(e.IO.Out)
	cmd.SetErr(e.IO.ErrOut)
	err := cmd.ExecuteContext(ctx)
	if text := cmdutil.Message(err); text != "" {
		e.Errorf("%s: %s\n", e.Name, text)
	}
	return cmdutil.ExitCode(err)
}

// parseRun parses the command line. It also raises limits that are too low for a size,
// because smc_run of smc-tools does it at this point.
func parseRun(e *tool.Env, args []string, limits string) (j runJob, status int, done bool) {
	j.sizes = make(map[string]int)
	g := tool.Getopt{Short: "dhr:t:v", Ordered: true}
	g.Parse(args)
	for {
		opt, value, message := g.Next()
		if opt == 0 {
			break
		}
		switch opt {
		case 'd':
			j.debug = true
		case 'h':
			e.Printf(runUsage)
			return j, 0, true
		case 'v':
			e.Printf("smc_run utility, smc-tools-%s\n", tool.Version)
			return j, 0, true
		case 'r', 't':
			n, ok := parseSize(value)
			if !ok {
				e.Printf("Error: Invalid buffer size specified: '%s'\n", value)
				return j, 1, true
			}
			if opt == 'r' {
				j.sizes["rcv"] = n
				raiseLimit(e, filepath.Join(limits, "rmem_max"), n)
			} else {
				j.sizes["snd"] = n
				raiseLimit(e, filepath.Join(limits, "wmem_max"), n)
			}
		default:
			// The shell's own message comes first.
			what := "illegal option"
			if strings.Contains(message, "requires an argument") {
				what = "option requires an argument"
			}
			e.Errorf("%s: %s -- %s\n", scriptName(e), what, value)
			e.Printf("%s: Error: Invalid option: -\n", e.Name)
			return j, 1, true
		}
	}
	if j.argv = g.Rest(); len(j.argv) == 0 {
		e.Printf("%s: Error: Missing command parameter\n", e.Name)
		return j, 1, true
	}
	return j, 0, false
}

// scriptName returns the path at which a shell would find the program.
func scriptName(e *tool.Env) string {
	if strings.Contains(e.Argv0, "/") {
		return e.Argv0
	}
	if path, err := exec.LookPath(e.Argv0); err == nil {
		return path
	}
	return e.Argv0
}

// parseSize parses a number of bytes with an optional unit.
func parseSize(s string) (int, bool) {
	unit := 1
	if s != "" {
		switch s[len(s)-1] {
		case 'k', 'K':
			s, unit = s[:len(s)-1], 1<<10
		case 'm', 'M':
			s, unit = s[:len(s)-1], 1<<20
		}
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n*uint64(unit) > 1<<31-1 {
		return 0, false
	}
	return int(n) * unit, true
}

// raiseLimit raises a limit of the kernel to n bytes. If that is not possible, it
// prints a message; this is not a failure.
func raiseLimit(e *tool.Env, file string, n int) {
	b, err := os.ReadFile(file)
	if err != nil {
		return // the limit of another network namespace
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || now >= n {
		return
	}
	if err := os.WriteFile(file, []byte(fmt.Sprintln(n)), 0); err != nil {
		e.Errorf("%s: cannot raise net.core.%s to %d: %s\n", e.Name, filepath.Base(file), n, errnoReason(err))
	}
}

func errnoReason(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// environment returns the variables of the preload library. LD_PRELOAD is not
// among them.
func (j runJob) environment() map[string]string {
	env := map[string]string{"SMC_DEBUG": "0"}
	if j.debug {
		env["SMC_DEBUG"] = "1"
	}
	if n, ok := j.sizes["rcv"]; ok {
		env["SMC_RCVBUF"] = strconv.Itoa(n)
	}
	if n, ok := j.sizes["snd"]; ok {
		env["SMC_SNDBUF"] = strconv.Itoa(n)
	}
	return env
}

// runArgs returns the arguments of smcr run for the job. Sizes are only for modes that
// support them.
func (j runJob) runArgs(cmd *cobra.Command) []string {
	var args []string
	if j.debug {
		args = append(args, "--debug")
	}
	for _, flag := range []string{"rcv", "snd"} {
		if n, ok := j.sizes[flag]; ok && cmd.Flags().Lookup(flag+"buf") != nil {
			args = append(args, "--"+flag+"buf", strconv.Itoa(n))
		}
	}
	return append(append(args, "--"), j.argv...)
}
