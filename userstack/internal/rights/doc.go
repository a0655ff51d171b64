// SPDX-License-Identifier: Apache-2.0

// Package rights has a thread act with no more capabilities than somebody else has,
// and tells which these are. The launcher and the service do so with what a program
// asks of them: the kernel says then what takes which capability.
//
// The functions are safe for concurrent use. They need no privilege, and take away
// what there is.
package rights
