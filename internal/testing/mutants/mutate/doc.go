// SPDX-License-Identifier: Apache-2.0

// Package mutate writes all mutants of a package into one source: each place that can be
// changed asks package active which change is to be made there, if any. So a package is
// compiled once for all of its mutants (these are called mutant schemata).
//
// It is pure: source text and types in, source text and the list of mutants out. Package
// trial compiles and runs the result.
package mutate
