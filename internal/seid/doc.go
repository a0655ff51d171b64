// SPDX-License-Identifier: Apache-2.0

// Package seid is the command smcr seid: the system enterprise ID of a host, and
// whether it is proposed to peers. Showing needs no privileges; changing needs
// root.
package seid
