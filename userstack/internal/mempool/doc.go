// SPDX-License-Identifier: Apache-2.0

// Package mempool keeps the mapped memory of closed connections for new ones, so that
// opening and closing connections neither maps memory nor causes page faults.
//
// It knows sizes only. What the memory is for, and with which devices it is registered,
// does not belong here.
//
// All methods are safe for concurrent use. The package needs no privileges.
package mempool
