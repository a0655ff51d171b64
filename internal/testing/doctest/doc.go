// SPDX-License-Identifier: Apache-2.0

// Package doctest runs the commands of the documents, so that what a reader types works and
// prints what the page shows.
//
// A code block of a document is a session on two hosts if it has lines that begin with a
// prompt:
//
//	hostA# smcr pnet add NET1 -I eth0
//	hostB$ smcr linkgroup list
//	LG-ID     LG-Role …
//
// A command that begins after # is of root, after $ of a user without privileges. It ends with
// the line, or with a later line if the line ends in a backslash. A command that ends in &
// runs in the background until the end of the document. The lines after a command, up to the
// next prompt or the end of the block, are what it must print: each must match one
// line of the output, in this order. In such a line, … stands for any text, also for
// none, and a run of spaces for any number of spaces. A command without such lines may print anything. It must
// succeed, unless a line "(exit status N)" follows.
//
// Each document has two hosts of its own, which are network, mount and PID namespaces: what it
// changes in /etc, /run, /root, /var and /usr/local is gone at the end, and a command such as
// pkill finds only the processes of its host. Both hosts find each other by the names hostA and
// hostB.
//
// Parsing and comparing do no I/O (session.go). The hosts belong in the tests.
package doctest
