// SPDX-License-Identifier: Apache-2.0

// Package guest boots Linux kernels with SMC for tests: Debian's 6.12, which has AF_SMC,
// smc_diag and soft-RoCE (rdma_rxe) as modules, in QEMU with software emulation. A boot
// takes a few seconds, so many tests can share a guest.
//
// A guest has the root file system of this machine, read-only below a tmpfs, so it has
// every program of the machine. Its /run, /tmp and /dev/shm are separate. The directory
// [SharePath] in the guest is [Guest.Share] on the host. An agent in the guest (package
// agent below this directory) starts the commands that the host sends over a
// virtio-serial port. It sends back their output and their exit status.
//
// The machine belongs here: kernel, boot, commands, files, links between guests, network
// devices, kernel modules. Tests do not.
//
// The kernel is a Debian package from the package mirror of this machine. It is unpacked
// but never installed, and stays in the user's cache directory (os.UserCacheDir,
// smcr/guest/VERSION). Nothing else of a guest remains after its end: the kernel kills
// QEMU together with the thread that started it, and a watchdog removes the directory of
// the guest when the process ends, however it ends.
//
// Guests are safe for concurrent use. The commands in a guest run at the same time. No
// privilege is needed: QEMU runs as the user, who is root in the guest.
package guest
