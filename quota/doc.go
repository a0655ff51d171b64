// SPDX-License-Identifier: Apache-2.0

// Package quota shares out the descriptors of a process that serves every user
// of a machine, so that none of them can end its service to the others, and has
// the log tell of refusals at a bounded rate.
package quota
