// SPDX-License-Identifier: Apache-2.0

// Package place is where the stack of a network namespace is found: who may have
// the place, and whom clients trust there.
//
// The sockets are files, because anybody may take an abstract name first. They
// are in a directory that bears the cookie of the network namespace, a number
// that no other one has until the machine restarts:
//
//	/run/smcr/COOKIE/run   of launchers (package broker)
//	/run/smcr/COOKIE/nl    of commands (package nl)
//	/run/smcr/COOKIE/local of the stacks of other network namespaces
//	/run/smcr/COOKIE/lock  locked by the stack that has the place
//
// A stack that may not write there has its place in the runtime directory of its
// user instead: $XDG_RUNTIME_DIR/smcr/COOKIE, or /run/user/UID/smcr/COOKIE.
// Clients look at root's place first and then at that of their own user.
//
// # Trust
//
// Clients use a socket only if it and the directories above it belong to root or
// to their own user, if nobody else can write to these directories, and if root
// or their own user listens. Symbolic links below the runtime directory are not
// followed. Anything else that is found there is an [UntrustedError]: it is not
// the same as no stack.
//
// A user namespace shows the users that it does not map as user 65534. Root of
// the host is one of them, and cannot be told from others. So clients in a user
// namespace do not trust the stack of the host, even if they share its network
// namespace.
//
// # Ends
//
// The kernel gives the lock back however a stack ends. The sockets of a killed one
// stay and refuse connections, which is the same as no socket. Its successor
// replaces them. The directory stays for the life of the network namespace, so
// that a mount of it into a container lasts from one stack to the next; a later
// stack removes it ([Sweep]).
//
// Needs Linux 5.14 (SO_NETNS_COOKIE); before it, there is no stack. All functions
// are for the network namespace of the calling thread and are safe for concurrent
// use.
package place
