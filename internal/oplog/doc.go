// SPDX-License-Identifier: Apache-2.0

// Package oplog makes the logs of processes that serve others: the stack, the exporter, and the
// process that makes cgroups. Programs, users and hosts cause what is logged there, and name
// things. So each of these logs has limits (package quota), and whatever is in a message, the message
// is one line of printable characters. A test in internal/archtest checks that such a process
// has no other log.
package oplog
