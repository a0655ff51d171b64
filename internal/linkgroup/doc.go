// SPDX-License-Identifier: Apache-2.0

// Package linkgroup is the command smcr linkgroup. Listing needs no privileges.
package linkgroup
