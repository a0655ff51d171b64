// SPDX-License-Identifier: Apache-2.0

// Package sockopt sets and reads socket options as a program asks for them: values of
// any kind, and with no more rights than the program has (see package rights).
//
// The functions are safe for concurrent use. No privileges.
package sockopt
