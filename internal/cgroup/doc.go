// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds, makes and enters cgroups of the version 2 tree (cgroups(7)).
//
// Paths are those of /proc/PID/cgroup: they begin with "/", and are below the place where the tree is
// mounted, which Top returns. What is outside of the cgroup namespace of this process has no path.
//
// What belongs elsewhere: which programs use SMC (package attach), and everything of controllers: the
// cgroups that this package makes have none.
package cgroup
