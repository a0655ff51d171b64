// SPDX-License-Identifier: Apache-2.0

// Package active says which mutant of the code runs. The code that package mutate writes
// asks it at each place that has mutants. It is compiled into test binaries only, by an
// overlay, and takes its orders from the environment of the process:
//
//   - SMCR_MUTANT is the number of the mutant that runs. Without it, the code does what its
//     source says.
//   - SMCR_MUTANTS_REACHED is a file with one byte for each mutant, which becomes 1 when the
//     process comes to the place of the mutant.
package active
