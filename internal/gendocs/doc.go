// SPDX-License-Identifier: Apache-2.0

// Command gendocs writes the manual pages (man/), the shell completions
// (completions/) and docs/troubleshooting.md, which has the table of internal/reasons:
//
//	go run ./internal/gendocs [DIRECTORY]
//
// The directory is the root of the module, by default the current one.
//
// A page has what the commands know of themselves (names, options, defaults,
// texts, examples) and, from pages/NAME.SECTION.txt, what they do not: columns,
// samples, files. Such a text is made of
//
//	# TITLE            a section; those of a command's page are put in order
//	text               a paragraph, up to an empty line
//	= term             a list item: the term, and its text in the lines below
//	    indented       literal lines
//
// with *bold* and _italic_ words. Options, paths, references such as smcr(8) and
// 'smcr commands' in quotes need no marks. The pages of the other names of the
// program are such a text as a whole; their completions have the options that
// the text lists. Pages carry no date, so they change with their text only.
//
// The program needs no privileges beyond writing there, and runs in one
// goroutine.
package main

//go:generate go run smcr/internal/gendocs ../..
