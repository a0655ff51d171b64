// SPDX-License-Identifier: Apache-2.0

// Package serve implements the command smcr serve: the user-space stack of a network
// namespace as a process, started by an administrator or on demand by package run. It
// has the flags, the log, the cgroup, the configuration file and the state file of this
// process. The service itself is package userstack/service.
package serve
