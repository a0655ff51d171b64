// SPDX-License-Identifier: Apache-2.0

// Package cmd has the commands of smcr that show and change SMC stacks: one file
// for each noun of the command line, such as link.go for smcr link. [All] returns
// them.
//
// Commands that list something are values of type list. It reads the flags, asks the
// stacks, selects the rows and prints them; a noun gives only the source of its rows,
// its filters, its columns and its form in JSON.
//
// What belongs here is the command line of a noun: flags, help, output, and the text
// of errors that a user can do something about. Commands that are more than that have
// packages of their own: check, run, serve, verbs.
//
// Listing needs no privileges. To change a stack needs root, or the user who runs the
// user-space stack. Each command serves one command line and one goroutine.
package cmd
