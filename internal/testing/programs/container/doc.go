// SPDX-License-Identifier: Apache-2.0

// Command container runs a program with the rights that a container has by default: the
// capabilities of Docker and of containerd, and a filter that refuses the system calls that
// their seccomp profile refuses. It makes no namespaces, so that a test chooses them.
//
// The profile depends on the capabilities: those that -cap adds allow more calls.
package main
