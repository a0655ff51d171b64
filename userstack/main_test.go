// SPDX-License-Identifier: Apache-2.0

package userstack_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// twoHosts matches the examples that need network namespaces.
const twoHosts = "^Example(Conn_Peek)?$"

// TestMain excludes the examples that need root if there is no root, because an example
// cannot skip itself. As with other tests, it fails in continuous integration instead.
func TestMain(m *testing.M) {
	flag.Parse()
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); os.Geteuid() != 0 && !ci {
		fmt.Fprintln(os.Stderr, "Example: skipped: needs root for network namespaces: run `sudo make test`")
		pattern := twoHosts
		if given := flag.Lookup("test.skip").Value.String(); given != "" {
			pattern += "|" + given
		}
		if err := flag.Set("test.skip", pattern); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
