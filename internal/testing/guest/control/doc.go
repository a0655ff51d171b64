// SPDX-License-Identifier: Apache-2.0

// Package control is the protocol between a test on the host and the agent in a guest:
// frames on a reliable byte stream. Both ends are from the same build, so there are no
// versions.
//
// A [Frame] may be shared after it is built. A [Reader] is for one goroutine. No
// privilege is needed.
package control
