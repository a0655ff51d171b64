// SPDX-License-Identifier: Apache-2.0

// Package output prints tables for users and JSON for programs. Tables have one
// header line and columns aligned by blanks; an empty table prints nothing, as in
// smc-tools, unless it is one whose header smc-tools prints in any case. JSON is indented and keeps the order of its fields; field names are in
// snake_case and must not change. Values must be used by one goroutine at a time. No
// privileges are needed.
package output
