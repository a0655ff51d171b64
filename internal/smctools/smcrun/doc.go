// SPDX-License-Identifier: Apache-2.0

// Package smcrun is the program smc_run of smc-tools: it runs a program whose TCP
// connections use SMC. It has no preload library: the launcher of smcr run does
// the work, static programs included. [Main] serves one command line. It needs
// the privileges of smcr run; raising the kernel's limits of buffer sizes needs
// root.
package smcrun
