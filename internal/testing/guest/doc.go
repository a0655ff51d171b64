// SPDX-License-Identifier: Apache-2.0

// Package guest boots real Linux kernels with SMC for tests: Debian's 6.12,
// which has AF_SMC, smc_diag and soft-RoCE (rdma_rxe) as modules, in QEMU with
// software emulation. One boot takes a few seconds and serves many tests.
//
// A guest sees the machine's own root file system, read-only below a tmpfs, so
// that every program of the machine is there; /run, /tmp and /dev/shm are its
// own. The directory [SharePath] in the guest is [Guest.Share] on the host. An
// agent in the guest (package agent below this directory) starts the commands
// that the host sends over a virtio-serial port and sends back what they
// write and how they end.
//
// What belongs here is the machine: kernel, boot, commands, files, wires
// between guests, network devices, kernel modules. What is tested does not.
//
// The kernel comes as a Debian package from the machine's own package mirror,
// is unpacked, never installed, and stays in the user's cache directory
// (os.UserCacheDir, smcr/guest/VERSION). Nothing else outlives a guest: QEMU
// dies with the thread that started it, and a watchdog removes the guest's
// directory when the process ends in whatever way.
//
// Guests are safe for concurrent use, commands in one guest run side by side.
// No privilege is needed: QEMU runs as the user, who is root in the guest.
package guest
