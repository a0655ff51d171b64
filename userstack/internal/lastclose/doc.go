// SPDX-License-Identifier: Apache-2.0

// Package lastclose reports when this process has the last reference to a socket: all other
// descriptors of it are closed, in whatever process, and none is on its way to one.
//
// The kernel has no such event, so eBPF programs look at the number of references of a file
// each time that one is given up. They run at the exit of the functions of the kernel that
// do that (see hooks), after the number has changed. Of two references that are given up at
// once, one is the later one, and its program sees the final number. This covers close,
// dup2, close_range, exec, the exit of a process, calls that still run when another thread
// closes the descriptor, and descriptors in messages that nobody has received.
//
// A program finds the file by the number of its inode, and then by its address, which
// belongs to it as long as this process has it: numbers of inodes are used again, also while
// a file with the same number still exists. The address is learnt from a call of this
// process (see Watch.Arm).
//
// A report says whether the socket had data then that nobody had read. Data that arrives
// later, but before somebody looks at the report, does not count.
//
// Each file is reported at most once after Arm. So there are never more reports than files,
// and the ring buffer has room for all.
//
// A Watch needs BTF of the kernel, CAP_BPF and CAP_PERFMON. The programs must be loaded
// before the process gives up CAP_PERFMON; to attach them needs CAP_BPF. They run for every
// file of the machine as long as they are attached, which takes some nanoseconds for files
// that are not sockets.
package lastclose
