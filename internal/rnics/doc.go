// SPDX-License-Identifier: Apache-2.0

// Package rnics is the command smcr rnics: the RDMA devices of the host, as
// sysfs has them (Linux, Documentation/ABI/stable/sysfs-class-infiniband),
// whether or not an SMC stack knows them. Reading needs no privileges.
package rnics
