// SPDX-License-Identifier: Apache-2.0

// Package guesttest tests the module against a live Linux kernel with SMC, in
// guests of package guest: that package nl and the program smcr say of the
// kernel what is so, also where the kernel has no SMC; that under each name of
// smc-tools it says the same as by its own commands, in the form that was recorded
// of smc-tools. It has tests only.
//
// One pair of guests serves all of them: package inguest holds those tests that
// run inside, command smcpeer moves data over AF_SMC there. Needs QEMU and, the
// first time, the package mirror; no privilege.
package guesttest
