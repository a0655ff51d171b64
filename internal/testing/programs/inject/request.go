// SPDX-License-Identifier: Apache-2.0

package main

// Request is what the test wants. It replaces the fault of the request before. Without a
// call, no call fails any more.
type Request struct {
	Call  string `json:"call,omitempty"`
	Errno int    `json:"errno,omitempty"` // a number of errno.h
	At    int    `json:"at,omitempty"`    // fails the At-th call from now on, 1 is the next one
	Times int    `json:"times,omitempty"` // how many calls in a row fail; 0 means one
}

// Answer is the state before the request.
type Answer struct {
	// Counts has the number of calls of each kind since the request before.
	Counts map[string]int `json:"counts"`
	// Failed is the number of calls that failed since the request before.
	Failed int    `json:"failed"`
	Error  string `json:"error,omitempty"`
}
