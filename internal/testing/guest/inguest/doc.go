// SPDX-License-Identifier: Apache-2.0

// Package inguest has tests that run inside a guest. There they may change the SMC of the
// kernel, because nothing else uses it. Package guesttest compiles and runs them there.
// Everywhere else they do nothing. They need root in the guest.
package inguest
