// SPDX-License-Identifier: Apache-2.0

// Package ours knows the processes and the units of systemd that are parts of smcr: stacks, the exporter, the page, checks. Nothing
// of them can use SMC-R, or is to, so commands give no advice about them. It only reads names, which others may have, too: who calls
// a program of his own smcr gets no advice about it, and loses nothing else.
package ours
