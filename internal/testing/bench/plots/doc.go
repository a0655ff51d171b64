// SPDX-License-Identifier: Apache-2.0

// Plots draws the newest result of the bench: SVG files for docs/performance.md,
// and its table. The same result gives the same bytes.
//
//	plots -results DIRECTORY -document FILE -svg DIRECTORY
//
// It is a module of its own, so that those who build smcr need no library for
// plots. `make bench-plots` runs it. Needs no privileges.
package main
