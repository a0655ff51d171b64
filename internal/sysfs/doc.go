// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads the RDMA devices of the host from sysfs (Linux,
// Documentation/ABI/stable/sysfs-class-infiniband), whether or not an SMC stack
// uses them. Only what sysfs says belongs here. Reading needs no privileges; an FS
// may be used by several goroutines.
package sysfs
