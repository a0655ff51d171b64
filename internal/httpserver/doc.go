// SPDX-License-Identifier: Apache-2.0

// Package httpserver is the one HTTP listener of a process of smcr, with the limits that a
// process needs which others must not be able to stop: on connections, on the sizes of
// requests and on the time that each step may take. What is served are handlers that the
// caller gives: metrics (package metrics), and whatever else a command shows.
//
// There is no authentication and no encryption. So the default is the loopback device, where
// requests with the name of another host are refused: a browser of this machine that a web
// page has made ask for that page's own name (DNS rebinding) gets nothing.
//
// Handlers run in the goroutines of net/http, which end alone if a handler panics.
package httpserver
