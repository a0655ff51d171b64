// SPDX-License-Identifier: Apache-2.0

// Package printable makes text of other hosts, users and programs safe to print: host names
// of peers, enterprise IDs and pnetids from the wire, names of programs and devices, error
// texts of another process. Such text may contain control sequences that change a terminal,
// characters that reverse the order of a line, or line ends that add lines to a listing.
//
// Each text passes through this package once, where it is printed. Packages that receive
// the text keep it as it is, except for error texts of another process, which become one line
// where they are received (package nl). An error of this program may have several
// lines; package cmdutil knows them, and what is in a name adds none.
package printable
