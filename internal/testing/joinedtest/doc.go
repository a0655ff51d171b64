// SPDX-License-Identifier: Apache-2.0

// Package joinedtest tests connections that are joined (smcr run --local), in a guest (package
// guest): many kernels of test machines refuse the eBPF programs of package lastclose, and
// connections with --local stay TCP there.
//
// One guest runs the compiled tests of package lastclose and the local tests of package
// service, which must not be skipped there, and then smcr itself: that connections of unmodified
// programs are joined, and show what TCP shows (package field); that none fails and few stay
// TCP while the guest is busy; and what another user can do.
//
// Another one runs the tests in which something leads connections elsewhere: the load balancer of
// the kernel (IPVS), which many kernels have not, and what needs joined connections for that.
//
// It has tests only. No privileges are needed. The tests are skipped where guests cannot be
// booted.
package joinedtest
