// SPDX-License-Identifier: Apache-2.0

// Package inguest holds tests for the inside of a guest, where they have the
// kernel's SMC for themselves and may change it. Package guesttest compiles
// and runs them; elsewhere they do nothing. Need root there.
package inguest
