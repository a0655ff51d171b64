// SPDX-License-Identifier: Apache-2.0

// Package ueid is the command smcr ueid: user-defined enterprise IDs of SMC
// version 2. Listing needs no privileges; changing needs root, or to be the
// owner of the stack in user space.
package ueid
