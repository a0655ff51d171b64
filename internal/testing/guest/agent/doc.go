// SPDX-License-Identifier: Apache-2.0

// Agent is the first process of a guest. As process 1 it makes the root file
// system and reaps orphans; its child runs the commands that the host sends
// (package control) until the host hangs up, then the machine is switched off.
//
// It belongs in an initramfs that package guest makes: [guest] says what the
// guest looks like. It must be linked statically and is root there; outside a
// guest it refuses to do anything.
//
// [guest]: ../doc.go
package main
