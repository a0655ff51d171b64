// SPDX-License-Identifier: Apache-2.0

// Package watch implements the flag --watch of the commands that list something. It
// shows the list once, or repeatedly until it is interrupted. On a terminal, the list
// is redrawn in place. Otherwise each list is appended, in JSON as one line:
//
//	{"time":"2026-11-20T19:45:00Z","rows":[…]}
//
// A loop runs in the goroutine of its caller and waits only for its timer and
// context, so that testing/synctest can test it. No privileges are needed.
package watch
