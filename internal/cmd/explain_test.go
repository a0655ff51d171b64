// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/reasons"
	"smcr/smc"

	"github.com/spf13/cobra"
)

func newExplainCommand(f *cmdutil.Factory) *cobra.Command { return newExplain(f, nil) }

// TestExplain looks reasons up in all ways, and checks the three forms of the output.
func TestExplain(t *testing.T) {
	for line, want := range map[string]string{
		"0x03030000":                      "no-smc-device (0x03030000): no SMC device\n\nCause: The side",
		"03030000":                        "no-smc-device (0x03030000)",
		"no-ueid":                         "no-ueid (0x03030008)",
		"does not speak":                  "peer-no-smc (0x03010000)",
		"smcr: 3 over TCP: other reasons": "other-reasons: other reasons\n",
		"TCP 0x05000000/0x03070000":       "other-subnet (0x03070000)",
		"ism":                             "Code        Name",
		"":                                "Code        Name",
	} {
		out, err := run(t, newExplainCommand, line)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%q: %v, %q", line, err, out)
		}
		for l := range strings.Lines(out) {
			if len(l) > 90 && strings.Contains(out, "Cause:") {
				t.Errorf("%q: a line of %d characters", line, len(l))
			}
		}
	}
	out, err := run(t, newExplainCommand, "0x03030008 -o json")
	var rows []explainJSON
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil {
		t.Fatal(err)
	}
	r, _ := reasons.Of(smc.DiagNoUEID)
	if len(rows) != 1 || rows[0].Name != r.Name || rows[0].Code != "0x03030008" || rows[0].Cause != r.Cause || len(rows[0].Cure) != len(r.Cure) {
		t.Errorf("%+v", rows)
	}
	out, err = run(t, newExplainCommand, "-o json")
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil || len(rows) != len(reasons.All()) {
		t.Errorf("%d of all reasons, %v", len(rows), err)
	}
	cmd := newExplain(&cmdutil.Factory{}, nil)
	if names, _ := cmd.ValidArgsFunction(cmd, nil, ""); len(names) != len(reasons.All()) || !strings.HasPrefix(names[0], "no-memory\t") {
		t.Errorf("completions: %q", names)
	}
	for line, want := range map[string]string{
		"0x12345678": `no reason "0x12345678": 'smcr explain' lists all`,
		"no-uied":    `no reason "no-uied": did you mean "no-ueid"?`,
		"xyzzy":      `no reason "xyzzy": 'smcr explain' lists all`,
	} {
		out, err := run(t, newExplainCommand, line)
		if !errors.Is(err, os.ErrNotExist) || err.Error() != want || out != "" {
			t.Errorf("%q: %v, %q", line, err, out)
		}
	}
}

// TestReasonHint checks the line below listings.
func TestReasonHint(t *testing.T) {
	for _, test := range []struct {
		codes []uint32
		want  string
	}{
		{nil, ""},
		{[]uint32{0, 0x4711}, ""},
		{[]uint32{0x03030008, 0, 0x03030008}, "see 'smcr explain no-ueid'"},
		{[]uint32{0x03030008, 0x03020000}, "see 'smcr explain NAME' for no-ueid, ipsec"},
	} {
		if got := reasonHint(test.codes); got != test.want {
			t.Errorf("%x: %q, want %q", test.codes, got, test.want)
		}
	}
}
