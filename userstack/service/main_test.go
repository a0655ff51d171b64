// SPDX-License-Identifier: Apache-2.0

package service

import (
	"flag"
	"os"
	"testing"
)

// withEngine has an engine carry the programs' bytes.
var withEngine bool

// TestMain runs all tests with an engine, and then, in their long form, without.
func TestMain(m *testing.M) {
	_, _ = kernelCloses() // its descriptors stay open
	flag.Parse()
	for _, withEngine = range []bool{true, false} {
		if !withEngine && testing.Short() {
			break
		}
		if code := m.Run(); code != 0 {
			println("with an engine:", withEngine)
			os.Exit(code)
		}
	}
}
