// SPDX-License-Identifier: Apache-2.0

// Package nltest tests implementations of [nl.Control]: [RunControlSuite] is
// the suite that every one of them passes, and [Fake] is one that keeps its
// state in memory and says what it is told to.
//
// A Fake is safe for concurrent use. No privileges are needed.
package nltest
