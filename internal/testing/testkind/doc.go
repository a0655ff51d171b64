// SPDX-License-Identifier: Apache-2.0

// Package testkind tells the three kinds of tests apart.
//
//   - A pure test has no clock but a fake one (testing/synctest), no socket and no process. It
//     says nothing: every test is pure that does not call a function of this package. If it fails,
//     that is a bug, and the gate is red.
//   - A system test has real sockets, namespaces, processes or BPF ([System]). It waits for events
//     ([Eventually]), never for time to pass, and never asserts that something took less than a
//     duration. If it fails in the gate, it runs again, alone, and is listed as flaky if it passes.
//   - A timing test asserts how long something takes ([Timing]). Its name begins with TestTiming.
//     `make timing` runs it, and the gate does not.
//
// The helpers that make namespaces, guests and pairs of sockets call System for the test, so few
// tests do it themselves. TestKinds of package archtest looks for those that should.
//
// What belongs here is what a test says of its kind, and how it waits. Helpers for one kind of
// resource belong to the package of that resource.
package testkind
