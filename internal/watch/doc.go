// SPDX-License-Identifier: Apache-2.0

// Package watch is the flag --watch of the commands that list something: it
// shows the list once, or again and again until it is interrupted. On a terminal
// the list is redrawn in place; otherwise each is appended, in JSON as one line:
//
//	{"time":"2026-11-20T19:45:00Z","rows":[…]}
//
// A loop runs in the goroutine of its caller and waits for nothing but its
// timer and context, so that it can be tested with testing/synctest. No
// privileges are needed.
package watch
