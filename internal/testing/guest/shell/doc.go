// SPDX-License-Identifier: Apache-2.0

// Shell boots a guest with SMC and soft-RoCE and runs a shell on its terminal,
// or the command that the arguments are (make guest). The guest is gone when
// the command ends. Needs a terminal, no privilege.
package main
