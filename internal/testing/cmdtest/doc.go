// SPDX-License-Identifier: Apache-2.0

// Package cmdtest tests how commands read their command lines. It runs no command
// and needs no privileges.
package cmdtest
