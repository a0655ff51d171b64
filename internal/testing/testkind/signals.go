// SPDX-License-Identifier: Apache-2.0

package testkind

import (
	"os"
	"os/signal"
)

// Signals begins what the runtime has once for os/signal. A package whose tests call signal.Notify in a
// bubble of testing/synctest says
//
//	var _ = testkind.Signals()
//
// Otherwise the first call in the process may be one in a bubble, depending on the order of the tests: the
// runtime would make channels there that it uses outside, which ends the process (Go 1.26).
func Signals() bool {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	signal.Stop(c)
	return true
}
