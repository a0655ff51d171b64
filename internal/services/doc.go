// SPDX-License-Identifier: Apache-2.0

// Package services has the command smcr service, which puts services of systemd under smcr
// run: it reads a unit, and writes a drop-in file for it that fits its sandbox.
//
// What belongs here is what smcr knows of systemd's units. [New] makes the drop-in file of a unit
// without any input or output; the command asks systemd through systemctl(1), whose output is
// the same on all releases. [Cgroup] does so for 'smcr attach'. Where the stack takes connections at the devices,
// a service is its cgroups, and its unit stays as it is (wire.go). Changing a unit needs root; nothing
// else here does. Each command serves one command line and one goroutine.
package services
