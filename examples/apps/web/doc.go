// SPDX-License-Identifier: Apache-2.0

// Web is a web server and a web client of package net/http over SMC-R.
//
//	hostA# web -listen :8080 -dir /usr/share/doc
//	hostB# web http://hostA:8080/bash/README.gz | wc -c
//
// The server gives its [http.Server] a listener of a stack, and the client gives its
// [http.Transport] the stack's DialContext. Everything else is as over TCP: keep-alive, TLS,
// HTTP/2, deadlines. Both say on standard error what carries each connection.
package main
