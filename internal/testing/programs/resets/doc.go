// SPDX-License-Identifier: Apache-2.0

// Resets is a program of package e2e that makes load: peers that announce SMC and reset
// their TCP connections at random moments of the CLC handshake, in either role, and their
// victims, which are programs without SMC.
//
//	resets attack-server ADDRESS COUNT SEED   COUNT connections to ADDRESS, each reset
//	resets listen ADDRESS                     its victim: accepts at ADDRESS
//	resets attack-client ADDRESS SEED         accepts at ADDRESS, resets each
//	resets connect ADDRESS COUNT              its victim: COUNT connections to ADDRESS
//
// The attackers need root, for the TCP option of SMC. The others need no privileges.
// SIGTERM ends all of them.
package main
