// SPDX-License-Identifier: Apache-2.0

// Inject runs an unchanged program and makes chosen system calls of it fail:
//
//	inject CALL[,CALL...] PROGRAM [ARGUMENT...]
//
// Each CALL is a name of the table calls (calls.go), or "all". Inject counts these calls of
// the program. On request it fails the k-th call of one kind with an error number, and
// lets all others go on. The failed call has no effect, as when the kernel refuses it.
//
// Requests arrive on descriptor 3, a stream socket, as JSON values ([Request]), and each
// has an answer ([Answer]). One more answer follows when the program has ended. The program
// does not get this descriptor. Only calls of the program itself count, not those of its
// children. SIGINT and SIGTERM are passed on. The exit status is that of the program. When
// inject ends, the program and its children are killed.
//
// The mechanism is a seccomp filter with SECCOMP_RET_TRACE and ptrace. It is not
// SECCOMP_RET_USER_NOTIF, because Linux allows only one listener for all filters of a
// process, and a program may be smcr run in mode kernel, which needs it for itself.
//
// It needs root and Linux on amd64, whose registers it changes.
package main
