// SPDX-License-Identifier: Apache-2.0

// Table writes the table of docs/reliability.md:
//
//	table RESULTS DOCUMENT
//
// RESULTS is a file of rows of package faults. Table replaces what is between the two lines
// of DOCUMENT that mark the table. Nothing else belongs here.
package main
