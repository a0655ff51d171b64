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
package waiter
