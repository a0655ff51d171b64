// SPDX-License-Identifier: Apache-2.0

// Package why implements the command smcr why. For the connections and listeners of a
// process, a port, an address or a unit of systemd, also of programs that smcr does not carry, it
// says what carries them, why, how fast they are, what was sent again, and what to do.
//
// What is known about a socket are [Facts]; the verdict (verdict.go) is a pure function of
// them. The facts come from the kernel's TCP sockets (sock_diag), the SMC stacks, and procfs:
// gather.go asks, match.go puts together what is about the same socket and selects what was
// asked for. report.go prints.
//
// Everything is read as the user who runs the command, and only what the kernel and the stacks
// tell this user is shown. It changes nothing. A command serves one goroutine.
package why
