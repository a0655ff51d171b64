// SPDX-License-Identifier: Apache-2.0

// Package cmdtest tests how commands read their command lines. It runs nothing
// and needs no privileges. For tests alone.
package cmdtest
