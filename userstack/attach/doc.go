// SPDX-License-Identifier: Apache-2.0

// Package attach has the table of the cgroups whose programs use SMC at the wire boundary: package divert
// announces for the sockets of these, and of the cgroups below them.
//
// There are two kinds of entries. One that was asked for by its path ([Table.Attach]) lasts until it is
// detached; the cgroup may come and go, as that of a unit does. One of a run ([Table.Enter]) is a cgroup that
// was made for one program and what that starts, below the cgroup in which it was started; it has no
// controllers, so limits, units and sessions stay as they are. It ends with its last process. Those of programs that
// were started in the topmost cgroup are below "/smcr": a stack has no right to remove one from the topmost itself.
//
//	cgroup           | then
//	-----------------+------------------------------------------------
//	comes, is there  | its sockets announce
//	goes             | an entry by its path waits for it to come again
//	is empty         | that of a run is removed, with its entry; without a stack, by the next one or the next smcr run there
//
// The kernel reports all of that (inotify(7)): nothing is polled. A stack that begins finds what its predecessor has
// made for runs by their names ([Table.Find]), also while that still runs and hands over ([Table.HandOver]).
//
// What belongs elsewhere: the finding and making of cgroups (internal/cgroup), the programs that ask for the
// cgroup of a socket (package divert), and who may ask for what (package nl).
package attach
