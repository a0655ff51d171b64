// SPDX-License-Identifier: Apache-2.0

// Resets is a load program of package e2e: peers that speak SMC and reset their
// TCP connections at random moments of the CLC handshake, in either role, and
// the programs that they do it to, which know nothing of SMC.
//
//	resets attack-server ADDRESS COUNT SEED   COUNT connections to ADDRESS, each reset
//	resets listen ADDRESS                     the program they are for: accepts
//	resets attack-client ADDRESS SEED         accepts at ADDRESS, resets each
//	resets connect ADDRESS COUNT              the program: COUNT connections to ADDRESS
//
// The attacking modes need root, for the TCP option of SMC; the others need no
// privileges. SIGTERM ends all of them.
package main
