// SPDX-License-Identifier: Apache-2.0

// Agent is the first process of a guest. As process 1, it makes the root file system and
// reaps orphans. Its child runs the commands that the host sends (package control) until
// the host closes the port. Then the machine is switched off.
//
// It belongs in an initramfs that package guest makes. The documentation of [guest]
// describes the guest. The agent must be linked statically, and is root there. Outside a
// guest, it refuses to do anything.
//
// [guest]: ../doc.go
package main
