// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
)

type keepOpen struct{ *nltest.Fake }

func (keepOpen) Close() error { return nil }

func TestPNET(t *testing.T) {
	fake := nltest.NewFake(nltest.State{})
	usage := fmt.Sprintf(pnetUsage, "smc_pnet")
	for _, test := range []struct {
		line   string
		status int
		out    string
		errOut string
	}{
		{"-f", 0, "", ""},
		{"-a NET1 --interface=eth0 -Dmlx5_0 --ibport 0x2", 0, "", ""},
		{"--add NET2 --ibdev mlx5_1", 0, "", ""},
		{"", 0, "NET1 eth0 n/a 255\nNET1 n/a mlx5_0 2\nNET2 n/a mlx5_1 1\n", ""},
		{"-s NET2", 0, "NET2 n/a mlx5_1 1\n", ""},
		{"NET2 -s", 0, "NET2 n/a mlx5_1 1\n", ""},
		{"-s net2", 0, "", ""},
		{"-d NET1 -I eth0 -P 2", 0, "", "smc_pnet: interface eth0 ignored\nsmc_pnet: ibport 2 ignored\n"},
		{"-d NET1", 1, "", "smc_pnet: Object not found\n"},
		{"-d", 1, "", "smc_pnet: Operation not supported\n"},
		{"-a -I eth0", 1, "", "smc_pnet: Invalid input data or parameter\n"},
		{"-a X -D mlx5_0 -P 0b1", 1, "", "smc_pnet invalid ib port:0b1\n" + usage},
		{"-I", 1, "", "smc_pnet: option requires an argument -- 'I'\n" + usage},
		{"--ib x", 1, "", "smc_pnet: option '--ib' is ambiguous; possibilities: '--ibdevice' '--ibport'\n" + usage},
	} {
		out, errOut, status := runPNET(t, fake, test.line)
		if diff := cmp.Diff([]string{test.out, test.errOut}, []string{out, errOut}); diff != "" || status != test.status {
			t.Errorf("%q: %d (-want +got):\n%s", test.line, status, diff)
		}
	}
	// Older kernels return ENOENT when an empty table is flushed. For other commands this
	// error is a failure.
	fake.SetError(syscall.ENOENT)
	if _, errOut, status := runPNET(t, fake, "-f"); errOut != "" || status != 0 {
		t.Errorf("empty table: %d, %q", status, errOut)
	}
	fake.SetError(syscall.EPERM)
	if _, errOut, status := runPNET(t, fake, "-f"); errOut != "smc_pnet: Operation not permitted\n" || status != 1 {
		t.Errorf("not permitted: %d, %q", status, errOut)
	}
}

func runPNET(t *testing.T, fake *nltest.Fake, line string) (out, errOut string, status int) {
	streams, _, o, e := cmdutil.MemoryStreams()
	env := tool.NewEnv(&cmdutil.Factory{IO: streams, Backend: "kernel", Dial: func(context.Context, string) (nl.Multi, error) {
		return nl.Multi{{Name: "kernel", Control: keepOpen{fake}}}, nil
	}}, "/sbin/smc_pnet")
	status = smcPNET(t.Context(), env, strings.Fields(line))
	return o.String(), e.String(), status
}
