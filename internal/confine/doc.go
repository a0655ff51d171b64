// SPDX-License-Identifier: Apache-2.0

// Package confine takes rights away from the running process, for good: capabilities
// ([KeepOnly]) and system calls ([Filter]). What a process may keep is not known here: that
// belongs to the command that runs in it.
//
// Everything here acts on all threads of the process, also on those that are started later.
// Nothing can be undone.
package confine
