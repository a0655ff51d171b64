// SPDX-License-Identifier: Apache-2.0

// Command gendocs writes the manual pages (man/, section 8) and the shell
// completions (completions/) from the commands of the program:
//
//	go run ./internal/gendocs [DIRECTORY]
//
// The directory is the root of the module, by default the current one. It needs
// no privileges beyond writing there.
package main

//go:generate go run smcr/internal/gendocs ../..
