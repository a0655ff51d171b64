// SPDX-License-Identifier: Apache-2.0

// Checked is traffic whose every byte is checked, in both directions at the same time. It
// is an ordinary static TCP program that does not use SMC itself.
//
//	checked server ADDRESS
//	checked client ADDRESS [-conns N] [-bytes N] [-for DURATION] [-pause DURATION] [-limit DURATION]
//
// The client makes N connections at the same time. On each, both sides send blocks of a
// generated stream, until there are -bytes bytes, or with -for until the time has passed.
// Each side compares what arrives with what the generator of the other side makes, byte by
// byte. Then both close, the client first.
//
// Both print one JSON value for each connection that has ended ([Result]), the client also
// for those that were not made. The server first prints "listening". The exit status of
// the client is 0 also if connections failed: the results say so. SIGTERM ends both.
package main
