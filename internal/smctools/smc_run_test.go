// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/run"
	"smcr/internal/smctools/tool"

	"github.com/google/go-cmp/cmp"
)

func TestParseRun(t *testing.T) {
	limits := t.TempDir()
	for _, name := range []string{"rmem_max", "wmem_max"} {
		if err := os.WriteFile(filepath.Join(limits, name), []byte("212992\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		line        string
		status      int
		out, errOut string
		argv        string
		env         map[string]string
	}{
		{"true", 0, "", "", "true", map[string]string{"SMC_DEBUG": "0"}},
		{"-d -r 128k -t 1M ls -r -x", 0, "", "", "ls -r -x", map[string]string{"SMC_DEBUG": "1", "SMC_RCVBUF": "131072", "SMC_SNDBUF": "1048576"}},
		{"-r5 -- ls", 0, "", "", "ls", map[string]string{"SMC_DEBUG": "0", "SMC_RCVBUF": "5"}},
		{"-r 5x true", 1, "Error: Invalid buffer size specified: '5x'\n", "", "", nil},
		{"-r 9999999M true", 1, "Error: Invalid buffer size specified: '9999999M'\n", "", "", nil},
		{"", 1, "smc_run: Error: Missing command parameter\n", "", "", nil},
		{"-x true", 1, "smc_run: Error: Invalid option: -\n", "/bin/smc_run: illegal option -- x\n", "", nil},
		{"-r", 1, "smc_run: Error: Invalid option: -\n", "/bin/smc_run: option requires an argument -- r\n", "", nil},
		{"-v", 0, "smc_run utility, smc-tools-1.8.5\n", "", "", nil},
		{"-h", 0, runUsage, "", "", nil},
	} {
		streams, _, out, errOut := cmdutil.MemoryStreams()
		e := tool.NewEnv(&cmdutil.Factory{IO: streams, Backend: "auto"}, "/bin/smc_run")
		j, status, done := parseRun(e, strings.Fields(test.line), limits)
		if status != test.status || out.String() != test.out || errOut.String() != test.errOut || done != (test.argv == "") {
			t.Errorf("%q: %d, %q, %q", test.line, status, out, errOut)
		}
		if done {
			continue
		}
		if diff := cmp.Diff(test.env, j.environment()); diff != "" || strings.Join(j.argv, " ") != test.argv {
			t.Errorf("%q: %q, environment (-want +got):\n%s", test.line, j.argv, diff)
		}
		// The command 'smcr run' must understand the translated command line.
		cmd := run.NewCmd(e.Factory)
		args := j.runArgs(cmd)
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("%q: %q: %v", test.line, args, err)
		}
		if words := strings.Join(cmd.Flags().Args(), " "); words != test.argv {
			t.Errorf("%q: program %q", test.line, words)
		}
	}
	// Limits are raised but never lowered.
	for name, want := range map[string]string{"rmem_max": "212992\n", "wmem_max": "1048576\n"} {
		if b, err := os.ReadFile(filepath.Join(limits, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v; want %q", name, b, err, want)
		}
	}
}
