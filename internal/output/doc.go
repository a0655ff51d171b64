// SPDX-License-Identifier: Apache-2.0

// Package output prints tables for people and JSON for programs. Tables have one
// header line and columns aligned by blanks; an empty table prints nothing at
// all, as with smc-tools. JSON is indented and keeps the order of its fields;
// field names are in snake_case and stay as they are. Values are used by one
// goroutine. No privileges are needed.
package output
