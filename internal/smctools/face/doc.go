// SPDX-License-Identifier: Apache-2.0

// Package face holds what the programs of smc-tools' names share: the [Env] they
// run in, command lines as the C library and util-linux read them, and the error
// texts of the library that smc-tools is linked with. An Env serves one command
// line and one goroutine. Privileges depend on the stack that is asked.
package face
