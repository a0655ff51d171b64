// SPDX-License-Identifier: Apache-2.0

// Reflector is the reflector of package reflector as a program, so that it can run under smcr run.
// It needs root, and a host that reflector.Prepare has prepared. It prints "reflecting" when
// connections are taken. SIGTERM ends it.
package main
