// SPDX-License-Identifier: Apache-2.0

// Package rights reads the capabilities of another process, and makes a thread act with no
// more capabilities than that process has. The launcher and the service use it for system
// calls that they make for a program: so the kernel decides whether the program may make
// them.
//
// What a program asks for does not belong here. The functions are safe for concurrent use.
// They need no privileges, and never add any.
package rights
