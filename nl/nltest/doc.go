// SPDX-License-Identifier: Apache-2.0

// Package nltest tests implementations of [nl.Control]: [RunControlSuite] is the suite
// that every implementation passes. [Fake] is an implementation that keeps its state in
// memory and returns errors on request.
//
// Tests of a single implementation do not belong here.
//
// A Fake is safe for concurrent use. No privileges are needed.
package nltest
