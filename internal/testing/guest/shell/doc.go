// SPDX-License-Identifier: Apache-2.0

// Shell boots a guest with SMC and soft-RoCE, and with smcr built from this source. It
// runs a shell on its terminal, or the command in the arguments (make guest). The guest
// ends with the command. It needs a terminal, but no privilege.
package main
