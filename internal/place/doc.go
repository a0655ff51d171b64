// SPDX-License-Identifier: Apache-2.0

// Package place has the directory in which the stack of a network namespace has its
// sockets: which stack may use the place, and which processes clients trust there.
//
// The sockets are files, because any user could take an abstract name first. Their directory
// has as its name the cookie of the network namespace. No other network namespace gets the
// same number until the machine restarts:
//
//	/run/smcr/COOKIE/nl    of commands (package nl)
//	/run/smcr/COOKIE/lock  locked by the stack that has the place
//	/run/smcr/COOKIE/takeover of the process that takes over from this stack
//	/run/smcr/COOKIE/part-N locked by the process that has part N of the numbers
//	/run/smcr/COOKIE/ending-N of commands, for a stack that has handed over
//
// A stack that may not write there uses the runtime directory of its user instead:
// $XDG_RUNTIME_DIR/smcr/COOKIE, or /run/user/UID/smcr/COOKIE. Clients look in the directory
// of root first, and then in that of their own user.
//
// # Trust
//
// Clients use a socket only if it and the directories above it belong to root or
// to their own user, if nobody else can write to these directories, and if root
// or their own user listens. Symbolic links below the runtime directory are not followed.
//
// Root can give the place of a network namespace to another user ([Give]), as whom the stack
// then runs: the directory with the cookie as its name belongs to this user. If only root can
// make files in /run and /run/smcr, only root can have made it so. Clients then trust this
// user too, for this network namespace. The owner of any other directory proves nothing.
// The error for anything else that is found there is an [UntrustedError], and not
// [ErrAbsent].
//
// A stack takes the right to write to its directory above from others if that directory is
// empty, like a new volume of a pod.
//
// A user namespace shows the users that it does not map as user 65534. Root of
// the host is one of them, and looks like the others. So clients in a user namespace do not
// trust the stack of the host, even if they share its network namespace.
//
// # Taking over
//
// A stack can hand the place over to another process ([Inherit]): it passes on the
// descriptor of the locked file, so that the place is never free. The new process opens
// sockets under other names and then gives them the names of those that it replaces
// ([Claim.Publish]). So a client always finds a socket. The old process ([Claim.Leave])
// may exist for a long time. What must differ between processes of one place, such as the
// numbers of queue pairs, they take from their parts ([Claim.Part]).
//
// # The end of a stack
//
// The kernel releases the lock when the process of the stack ends in any way. A process that was
// killed and cannot end keeps the lock, but it is named in the file, so the next stack sees that
// it is dead and makes a new file ([Claim.Dead]). If somebody removes the directory, the stack goes
// on, and the next one sees a socket without a file and does not start ([LostError]); nor does one that has another directory of the same
// name, in another mount namespace. The sockets of
// a killed stack stay and refuse connections; clients treat this like no socket. The next
// stack replaces them. The directory stays as long as the network namespace exists, so that
// a mount of the directory in a container remains valid for the next stack. A later stack
// removes it ([Sweep]).
//
// Needs Linux 5.14 (SO_NETNS_COOKIE); before it, there is no stack. All functions
// are for the network namespace of the calling thread and are safe for concurrent
// use.
package place
