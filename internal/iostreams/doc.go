// SPDX-License-Identifier: Apache-2.0

// Package iostreams holds the standard streams of the program, so that commands
// can be tested without a terminal. Commands write to what they are given and
// never to os.Stdout. An IOStreams belongs to one command at a time. No
// privileges are needed.
package iostreams
