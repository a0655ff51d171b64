// SPDX-License-Identifier: Apache-2.0

// Package services has the command smcr service, which has the connections of services of systemd use SMC-R.
//
// What belongs here is what smcr knows of systemd's units. A service is its cgroups, and its unit stays as it is (attach.go). The
// command asks systemd through systemctl(1), whose output is the same on all releases. [Cgroup] does so for 'smcr attach'. Each
// command serves one command line and one goroutine.
package services
