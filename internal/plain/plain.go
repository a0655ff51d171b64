// SPDX-License-Identifier: Apache-2.0

package plain

import (
	"slices"
	"strings"
)

// packageNames are the names of the packages whose errors begin with the name. A
// test in internal/archtest checks that the public packages are all here.
var packageNames = []string{
	"bounded",
	"attach",
	"config",
	"conn",
	"devices",
	"divert",
	"driver",
	"engine",
	"guard",
	"header",
	"inside",
	"kernelsmc",
	"linkgroup",
	"mempool",
	"network",
	"nl",
	"nltest",
	"pathmemory",
	"pnet",
	"quota",
	"rdmaverbs",
	"relay",
	"rendezvous",
	"rounds",
	"service",
	"simfabric",
	"smc",
	"softroce",
	"stats",
	"takeover",
	"tcpopt",
	"tcptable",
	"tracing",
	"userstack",
	"verbstest",
	"wire",
}

// Text returns the text of an error as people read it: without the names of Go
// packages at its beginning and before the causes that it wraps. It turns "userstack: no
// RoCE device: softroce: netdev is gone" into "no RoCE device: netdev is gone".
func Text(text string) string {
	var b strings.Builder
	for start := true; text != ""; {
		if start {
			text = cutNames(text)
		}
		i := strings.IndexAny(text, ":;\n(")
		if i < 0 {
			b.WriteString(text)
			break
		}
		end := i + 1
		start = text[i] == '\n' || text[i] == '('
		if strings.HasPrefix(text[end:], " ") && !start {
			start, end = true, end+1
		}
		b.WriteString(text[:end])
		text = text[end:]
	}
	return b.String()
}

// cutNames removes the names of packages at the beginning of a text.
func cutNames(text string) string {
	for {
		name, rest, ok := strings.Cut(text, ": ")
		if !ok || rest == "" || !slices.Contains(packageNames, name) {
			return text
		}
		text = rest
	}
}
