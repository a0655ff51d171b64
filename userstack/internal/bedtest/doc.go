// SPDX-License-Identifier: Apache-2.0

// Package bedtest has what the tests of package userstack and those of whole stacks
// (package stacktest) share: the hosts of a test, their addresses and netdevs, and checks
// of streams. What depends on the type of a stack does not belong here, because the tests
// of package userstack could not import it.
//
// The functions are for the goroutine of the test. No privileges are needed.
package bedtest
