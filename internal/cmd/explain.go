// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"io"
	"os"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/reasons"
	"smcr/internal/typo"
	"smcr/smc"

	"github.com/spf13/cobra"
)

type explainOptions struct {
	*cmdutil.Factory
	what   string // "" means all
	format string
}

func newExplain(f *cmdutil.Factory, runF func(*explainOptions) error) *cobra.Command {
	opts := &explainOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "explain [CODE|NAME|TEXT...]",
		Aliases: []string{"reason", "reasons"},
		Short:   "Explain why a connection is TCP, and what to do",
		Long: "Explain a reason for which a connection is TCP and not SMC-R: its cause, and what to\n" +
			"do. CODE is the number of the reason in hexadecimal, as 'smcr connection list',\n" +
			"'smcr stats show -d' and smcss(8) show it. NAME is the name of the reason, or the name\n" +
			"that it has in metrics. TEXT is a part of a name or a text, or a whole message of\n" +
			"'smcr run -v' or 'smcr check'. If several reasons match, smcr lists them. Without an\n" +
			"argument, it lists all.\n\n" +
			"'smcr why PID' finds the reasons of the connections that there are.\n\n" +
			"The command needs no stack and no privileges. docs/troubleshooting.md has the same\n" +
			"texts.",
		Example: "  smcr explain 0x03030000\n  smcr explain no-ueid\n  smcr explain subnet\n  smcr explain -o json",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			opts.what = strings.Join(args, " ")
			if runF != nil {
				return runF(opts)
			}
			return explain(opts)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, r := range reasons.All() {
				names = append(names, cobra.CompletionWithDesc(r.Name, r.Heading()))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	return cmd
}

// An explainJSON is a reason in JSON.
type explainJSON struct {
	Name  string   `json:"name"`
	Code  string   `json:"code,omitempty"`
	Text  string   `json:"text"`
	Cause string   `json:"cause"`
	Cure  []string `json:"cure"`
}

func explain(opts *explainOptions) error {
	hits := reasons.All()
	if opts.what != "" {
		if hits = reasons.Find(opts.what); len(hits) == 0 {
			return noReason(opts.what)
		}
	}
	switch {
	case opts.format == cmdutil.FormatJSON:
		rows := make([]explainJSON, len(hits))
		for i, r := range hits {
			rows[i] = explainJSON{r.Name, r.Number(), r.Heading(), r.Cause, r.Cure}
		}
		return output.JSON(opts.IO.Out, rows)
	case len(hits) == 1:
		_, err := io.WriteString(opts.IO.Out, explanation(&hits[0]))
		return err
	}
	t := output.NewTable("Code", "Name", "Reason")
	for _, r := range hits {
		t.Add(output.Or(r.Number()), r.Name, r.Heading())
	}
	return t.Print(opts.IO.Out)
}

// reasonHint returns the line that leads from codes in a listing to their explanation, or "".
func reasonHint(codes []uint32) string {
	var hints []string
	for _, c := range codes {
		if name := reasons.Name(smc.Diagnosis(c)); name != "" && !slices.Contains(hints, name) {
			hints = append(hints, name)
		}
	}
	switch len(hints) {
	case 0:
		return ""
	case 1:
		return "see 'smcr explain " + hints[0] + "'"
	}
	return "see 'smcr explain NAME' for " + strings.Join(hints, ", ")
}

// noReason is the error of a reason that is not known.
func noReason(what string) error {
	var names []string
	for _, r := range reasons.All() {
		names = append(names, r.Name)
	}
	return cmdutil.Say(os.ErrNotExist, "no reason %q: %s", what, typo.Meant(what, names, "'smcr explain' lists all"))
}

// explanation returns the text about a reason.
func explanation(r *reasons.Reason) string {
	var b strings.Builder
	title := r.Name
	if n := r.Number(); n != "" {
		title += " (" + n + ")"
	}
	b.WriteString(title + ": " + r.Heading() + "\n\n" + output.Wrap("Cause: ", r.Cause, "       ") + "\n")
	first := "Cure:  "
	for _, s := range r.Cure {
		b.WriteString(output.Wrap(first, s, "       ") + "\n")
		first = "       "
	}
	return b.String()
}
