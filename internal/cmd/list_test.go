// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/sysfs"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/spf13/cobra"
)

// run runs a command for a Factory that has one stack in the sample state. It returns the
// output of the command.
func run(t *testing.T, newCmd func(*cmdutil.Factory) *cobra.Command, line string) (string, error) {
	t.Helper()
	streams, _, out, _ := cmdutil.MemoryStreams()
	fake := nltest.NewFake(nltest.SampleState())
	f := &cmdutil.Factory{
		IO: streams, Backend: "user", NetDev: cmdutil.NetDev,
		Dial: func(context.Context, string) (nl.Multi, error) { return nl.Multi{{Name: "user", Control: fake}}, nil },
	}
	cmd := newCmd(f)
	cmd.SetArgs(strings.Fields(line))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestLists checks the flags that all lists have, and those of single lists.
func TestLists(t *testing.T) {
	rnics := func(f *cmdutil.Factory) *cobra.Command { return newRNICs(f, sysfs.New(t.TempDir())) }
	for name, test := range map[string]struct {
		newCmd func(*cmdutil.Factory) *cobra.Command
		good   []string // more command lines that are right
		bad    []string
	}{
		"connection list": {newConnectionList, []string{"-o wide", "-a", "--all -o wide"}, []string{"name"}},
		"device list":     {newDeviceList, []string{"-o wide", "--state active"}, []string{"--state up"}},
		"hslimit show":    {newHSLimitShow, nil, []string{"-o wide", "name"}},
		"info":            {newInfo, nil, []string{"-o wide", "name"}},
		"link list":       {newLinkList, []string{"-o wide", "100"}, []string{"name", "--peer host"}},
		"linkgroup list":  {newLinkGroupList, []string{"-o wide", "--output=wide", "0x100"}, []string{"name", "--role peer"}},
		"pnet list":       {newPNETList, nil, []string{"-o wide", "a-b"}},
		"rnics":           {rnics, []string{"-o wide"}, []string{"name"}},
		"seid show":       {newSEIDShow, nil, []string{"-o wide", "name"}},
		"stats show":      {newStatsShow, []string{"-a", "-d -a"}, []string{"-o wide", "name"}},
		"ueid list":       {newUEIDList, nil, []string{"-o wide", "lower"}},
	} {
		t.Run(name, func(t *testing.T) {
			plain, err := run(t, test.newCmd, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range append([]string{"-o table", "-o json"}, test.good...) {
				if _, err := run(t, test.newCmd, line); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
			if out, err := run(t, test.newCmd, "--output table"); err != nil || out != plain {
				t.Errorf("--output table is not the default: %v", err)
			}
			if out, err := run(t, test.newCmd, "-o json"); err != nil || !strings.HasPrefix(out, "[") {
				t.Errorf("-o json prints %q, %v", out, err)
			}
			for _, line := range append([]string{"-o xml", "--nope", "--watch=1ms"}, test.bad...) {
				if out, err := run(t, test.newCmd, line); err == nil || out != "" {
					t.Errorf("%q: no error, printed %q", line, out)
				}
			}
		})
	}
}
