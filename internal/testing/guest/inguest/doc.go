// SPDX-License-Identifier: Apache-2.0

// Package inguest has tests that run inside a guest, where nothing else uses the
// kernel's SMC and they may change it. Package guesttest compiles them and runs
// them there; everywhere else they do nothing. They need root in the guest.
package inguest
