// SPDX-License-Identifier: Apache-2.0

// Package archtest checks the architecture. Its tests read the whole module with
// go list and go/parser. They check which package imports which, that what ships
// does not import what is for tests, the rules of form that no linter checks, and that
// the tests, files and links in the documents exist. It has no other code.
//
// The table in imports_test.go holds the import rules; docs/architecture.md
// explains them. The tests need the go command and no privileges.
package archtest
