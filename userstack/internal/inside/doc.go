// SPDX-License-Identifier: Apache-2.0

// Package inside is the way into package userstack for its sister packages. It holds
// what package service needs to carry the connections of other programs, and lets
// tests replace the host of a stack. A program that embeds a stack has no use for
// either. Package userstack connects it to its own types with [Bind].
//
// The functions are safe for concurrent use. They need no privilege.
package inside
