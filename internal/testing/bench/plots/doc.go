// SPDX-License-Identifier: Apache-2.0

// Plots draws the newest result of the benchmarks: SVG files for docs/performance.md, and
// its table. The same result gives the same bytes.
//
//	plots -results DIRECTORY -document FILE -svg DIRECTORY
//
// It is a separate module, so that smcr can be built without a library for plots. `make
// bench-plots` runs it. It needs no privileges.
package main
