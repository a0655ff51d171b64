// SPDX-License-Identifier: Apache-2.0

// Package top implements smcr top: it shows the link groups, links and connections of the SMC
// stacks and their rates on a terminal, and refreshes them until the user quits.
//
// The package has three parts. The digest makes a [Sample] of what the stacks answer: it
// computes rates from two samples and keeps only the first rows in the order of the screen, so
// that a stack with 100,000 connections needs little memory here. The [Model] takes samples,
// keys and sizes, and returns a screen as lines of text. Both are pure: no I/O, no clock, no
// terminal, and the tests compare whole screens. The program around them asks the stacks and
// draws with bubbletea, which no other package may import.
//
// All text of other hosts, users and programs is cleaned and cut to a width in terminal cells
// when it gets into a cell of a table.
package top
