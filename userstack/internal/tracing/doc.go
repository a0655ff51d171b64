// SPDX-License-Identifier: Apache-2.0

// Package tracing passes what a stack sends and receives to those who trace it: the hub
// between the places where messages and packets come along and the control interface.
//
// While nobody traces, [Hub.On] is one load of a pointer, and nothing else happens. While
// somebody does, each event is copied into the memory of each trace. This memory is limited:
// events that do not fit are counted. A trace whose owner does not ask for some seconds ends.
//
// The package starts no goroutines and has no timers. A [Hub] is safe for concurrent use. Its
// lock is held for moments only, and nothing is called while it is held, so Add may be called
// with any other lock.
package tracing
