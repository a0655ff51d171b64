// SPDX-License-Identifier: Apache-2.0

// Package reasons is the table of the reasons why a connection is TCP and not SMC-R: for
// each reason a name that does not change, a sentence of its cause and sentences that say
// what to do. The commands and docs/troubleshooting.md take their texts from it.
//
// The stack knows a reason by its number (smc.Diagnosis) or by the text of an error. It
// does not import this package: [Find] and [In] lead from the number or the text to the
// entry. A test reads the reasons out of the source of the stack and fails for one without
// an entry.
package reasons
