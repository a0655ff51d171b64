// SPDX-License-Identifier: Apache-2.0

// Package output prints tables for users and JSON for programs. Tables have one
// header line, also without rows, and columns aligned by blanks. JSON is indented and keeps the order of its fields; field names are in
// snake_case and must not change. Values must be used by one goroutine at a time. No
// privileges are needed.
package output
