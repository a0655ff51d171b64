// SPDX-License-Identifier: Apache-2.0

// Package exportcmd is the command smcr export: the configuration of a stack as
// a file that smcr apply takes. It needs no privileges.
package exportcmd
