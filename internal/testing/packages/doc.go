// SPDX-License-Identifier: Apache-2.0

// Package packages tests what `make deb`, `make rpm` and `make dist` make, as those use it who
// do not have the source: they install, use, upgrade and remove it.
//
// What belongs here is what only the installed files can show: their places, owners and modes,
// the scripts of the packages, names that another package has too, what an upgrade leaves alone,
// and what remains after a removal. What the program does belongs elsewhere. There are only
// tests.
//
// The Debian of the tests is made once a run by debootstrap, from the mirror that apt of this
// machine uses. It is in memory and in a mount namespace of its own. Each test has a machine: a
// copy of these files, with its own processes, network and cgroup, and with systemd as process 1
// or without it (testdata/machine.sh). All of it ends with the test, also if the test is killed.
//
// The tests need root, the tools of scripts/setup-test-tools test-all, and the mirror.
package packages
