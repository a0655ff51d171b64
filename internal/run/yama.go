// SPDX-License-Identifier: Apache-2.0

package run

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
)

// mayTraceAll reports whether a launcher may access processes of the same user that are not its
// descendants. yama is the file. (A process may permit another one to trace it, with PR_SET_PTRACER. But its
// children do not inherit this.)
func mayTraceAll(yama string) bool {
	b, err := os.ReadFile(yama)
	if err != nil || strings.TrimSpace(string(b)) == "0" {
		return true
	}
	have, err := confine.Effective()
	return err == nil && have.Has(unix.CAP_SYS_PTRACE)
}
