// SPDX-License-Identifier: Apache-2.0

// Package applycmd is the command smcr apply: it brings a stack to the state
// that a configuration file describes. It needs the privileges of changing the
// stack; with --dry-run it needs none.
package applycmd
