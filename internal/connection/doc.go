// SPDX-License-Identifier: Apache-2.0

// Package connection is the command smcr connection. Listing needs no
// privileges.
package connection
