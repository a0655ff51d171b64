// SPDX-License-Identifier: Apache-2.0

// Package device is the command smcr device. Listing needs no privileges.
package device
