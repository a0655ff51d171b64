// SPDX-License-Identifier: Apache-2.0

// Package containers finds the cgroups of containers and of pods of Kubernetes by the names that users know.
//
// A container runtime says which container has a name, and what its first process is. Where that process is, the kernel
// says: the outermost cgroup whose name has the ID of the container is the container's. Everything below it may
// be made by the container itself, and is not looked at. The names of pods are those of the folders in which the kubelet keeps their logs.
// What has ended has no process and no cgroup: its cgroup is looked for in a list of the caller.
//
// What belongs elsewhere: units of systemd (package services), and what is done with a cgroup (package cmd).
package containers
