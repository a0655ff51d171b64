// SPDX-License-Identifier: Apache-2.0

// Package cmdtest tests how commands read their command lines, and gives them a terminal to
// write to. It needs no privileges.
package cmdtest
