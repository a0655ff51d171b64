// SPDX-License-Identifier: Apache-2.0

// Package waiter starts a program so that something is left to do when it has ended, and that nobody sees a difference: the
// process that was started stands for the program until its end.
//
//	waiter            the process that was started
//	  runner          this executable with the same arguments: what it does decides, see [TheRunner]
//	    program       in the process group and the session of the waiter
//
// The waiter passes signals on, stops when the program stops, and ends as the program ends, with its exit status or by its signal.
// It passes the messages of the program to the service manager (NOTIFY_SOCKET), and reaps orphans if it is process 1 of a
// container. It and the runner keep none of the descriptors that are the program's.
//
// There are two of them because a process that is stopped cannot see that the program goes on.
//
// Nothing of the program runs before all is there that they need while it runs: sockets, pipe, signalfd, and a try of each call that
// comes later. If something is missing, as in a sandbox, the waiter becomes this executable once more ([Without]), and that the
// program: it has all but a waiter.
//
//	system call                                   | without it
//	----------------------------------------------+------------------------------------------------------------
//	socketpair, sendto, sendmsg, recvmsg          | no waiter
//	pipe2, signalfd4, poll, wait4                 | no waiter
//	setpgid, getpgid                              | no waiter
//	kill and pidfd_send_signal                    | no waiter, if it has neither
//	socket(AF_UNIX), bind, setsockopt, getsockname | no waiter, if a service manager waits for messages
//	pidfd_open, prctl, prlimit64, dup3, chdir     | what they are for is missed: a number for a pidfd, no core limit, and the like
package waiter
