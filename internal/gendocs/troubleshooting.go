// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"smcr/internal/reasons"
)

// troubleshooting returns docs/troubleshooting.md: what is in the table of reasons, below an
// introduction.
func troubleshooting(intro []byte) []byte {
	var b bytes.Buffer
	b.WriteString("<!-- Written by 'go generate ./internal/gendocs' from package internal/reasons. -->\n")
	b.Write(intro)
	all := reasons.All()
	b.WriteString("\n## All reasons\n\n| code | name | text |\n|---|---|---|\n")
	for _, r := range all {
		code := "-"
		if r.Code != 0 {
			code = "`" + r.Number() + "`"
		}
		fmt.Fprintf(&b, "| %s | [%s](#%[2]s) | %s |\n", code, r.Name, r.Heading())
	}
	for _, r := range all {
		fmt.Fprintf(&b, "\n### %s\n\n", r.Name)
		if r.Code != 0 {
			fmt.Fprintf(&b, "`%s`: ", r.Number())
		}
		fmt.Fprintf(&b, "%s.\n\n%s\n\n", r.Heading(), markdown(r.Cause))
		for _, s := range r.Cure {
			fmt.Fprintf(&b, "* %s\n", markdown(s))
		}
	}
	return b.Bytes()
}

// explanations writes the table of reasons into the page of smcr explain.
func explanations(r *roff) {
	for _, x := range reasons.All() {
		head := bold(x.Name)
		if x.Code != 0 {
			head += " (" + x.Number() + ")"
		}
		r.item(head, inline(x.Cause+" "+strings.Join(x.Cure, " ")))
	}
}

// markdown returns a sentence with its commands, which are in single quotes, as code. A quote
// within a word is an apostrophe.
func markdown(s string) string {
	out := []byte(s)
	open := false
	for i, c := range out {
		first := i == 0 || strings.IndexByte(" (", s[i-1]) >= 0
		if c == '\'' && (open || first) {
			out[i] = '`'
			open = !open
		}
	}
	return string(out)
}
