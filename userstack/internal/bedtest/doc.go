// SPDX-License-Identifier: Apache-2.0

// Package bedtest has what the tests of package userstack and those of whole stacks
// (package stacktest) share: the hosts of a test, their addresses and netdevs, checks of
// streams, and what a test does with stacks on two hosts. It does not import package
// userstack, because the tests of that package could not use it then: it reaches stacks
// through package inside. A helper that needs the configuration of a stack does not belong
// here.
//
// The functions are for the goroutine of the test. No privileges are needed.
package bedtest
