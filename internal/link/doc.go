// SPDX-License-Identifier: Apache-2.0

// Package link is the command smcr link. Listing needs no privileges.
package link
