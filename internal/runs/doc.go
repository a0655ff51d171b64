// SPDX-License-Identifier: Apache-2.0

// Package runs has the process that makes cgroups for programs under 'smcr run' where neither their user nor the stack may: the
// tree of cgroups belongs to root, and the stack of the systemd unit is of another user.
//
// The process is of root and has no capability. It does one thing: who connects to its socket ([Ask]) is moved into a new cgroup
// below the one that it is in ([Serve]). Nothing is read from the connection. The kernel says who has connected:
//
//	what                  | by
//	----------------------+--------------------------------------------------
//	user, process         | SO_PEERCRED, SO_PEERPIDFD: those of connect()
//	network namespace     | SO_NETNS_COOKIE of the accepted socket, which is in that of the other end
//	cgroup                | /proc/PID/cgroup
//
// Who is in a cgroup for a run already is not moved: only the end of that is watched. So it is with root, which makes its own, but for
// sandboxes where it may not.
//
// So nobody moves a process of others, and nobody chooses where to. The bounds, the names and the removal are those of a stack of
// root: package attach. The stack finds the cgroup by its name and attaches it.
package runs
