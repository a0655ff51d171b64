// SPDX-License-Identifier: Apache-2.0

// Package inside holds what the packages below userstack share and programs
// that embed a stack have no use for: the terms in which a stack asks about its
// host, and what package service needs to carry the connections of other
// programs. Package userstack binds it to its own types with [Bind].
//
// The functions are safe for concurrent use. They need no privilege.
package inside
