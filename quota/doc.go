// SPDX-License-Identifier: Apache-2.0

// Package quota divides the descriptors of a process that serves all users of a
// machine, so that no user can take those of the others. It also limits what is
// logged of what others cause, by kind and by source: see [LimitRecords]. [Silents] are
// hosts whose connections say nothing.
//
// The package imports nothing of this module.
package quota
