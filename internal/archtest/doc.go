// SPDX-License-Identifier: Apache-2.0

// Package archtest holds the architecture in place: its tests read the whole
// module with go list and go/parser and check which package imports which,
// and the rules of form that no linter of ours knows. It has no other code.
//
// The import rules are the table in imports_test.go; docs/architecture.md
// explains them. Needs the go command; no privileges.
package archtest
