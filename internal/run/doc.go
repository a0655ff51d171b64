// SPDX-License-Identifier: Apache-2.0

// Package run is the command smcr run: it starts an unmodified program whose
// TCP connections use SMC-R where the peer does too. It finds the stack of
// the network namespace, or starts it.
package run
