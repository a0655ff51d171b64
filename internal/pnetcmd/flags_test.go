// SPDX-License-Identifier: Apache-2.0

package pnetcmd

import (
	"io"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
	"smcr/nl"
)

func TestFlags(t *testing.T) {
	run := func(line string) (*addOptions, error) {
		streams, _, _, _ := iostreams.Test()
		var got *addOptions
		cmd := newCmdAdd(&cmdutil.Factory{IO: streams}, func(o *addOptions) error {
			got = o
			return nil
		})
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.Execute()
		return got, err
	}
	for _, test := range []struct {
		line string
		ok   func(*addOptions) bool
	}{
		{"net1 -I eth0", func(o *addOptions) bool { return o.entry == nl.PNET{ID: "NET1", NetDev: "eth0", IBPort: 1} }},
		{"NET1 -D mlx5_0 -P 2", func(o *addOptions) bool { return o.entry == nl.PNET{ID: "NET1", IBDev: "mlx5_0", IBPort: 2} }},
		{"NET1 --netdev eth0 --ibdev mlx5_0", func(o *addOptions) bool {
			return o.entry == nl.PNET{ID: "NET1", NetDev: "eth0", IBDev: "mlx5_0", IBPort: 1}
		}},
	} {
		o, err := run(test.line)
		if err != nil || o == nil || !test.ok(o) {
			t.Errorf("%q: %+v, %v", test.line, o, err)
		}
	}
	for _, line := range []string{"", "NET1", "NET1 NET2 -I eth0", "NET1 -I eth0 -P 1", "NET1 -D x -P 0", "NET1 -D x -P 300", "A-B -I eth0", "12345678901234567 -I eth0"} {
		if o, err := run(line); err == nil || o != nil {
			t.Errorf("%q: no error", line)
		}
	}
}
