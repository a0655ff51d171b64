// SPDX-License-Identifier: Apache-2.0

// Package control is the protocol between a test on the host and the agent in
// a guest: frames on a byte stream that neither loses nor reorders. Both ends
// come from the same build, so there are no versions.
//
// A [Frame] is safe to share once it is built; a [Reader] belongs to one
// goroutine. Needs no privilege.
package control
