// SPDX-License-Identifier: Apache-2.0

// Package field replays situations in which programs were seen to notice that their
// connections are not TCP: reports of users of such software, and test suites of others. The
// judge is TCP: both sides of a case print what they see, and must print the same in each mode
// of smcr ([Modes]) as over kernel TCP between the same hosts.
//
// A case is a script of testdata and a line of [Cases]. Its first lines say which rule of TCP
// it is about. testdata/side.py has what all need. A new case: write the script, so that what
// it prints is the same each time over TCP; add the line; run
//
//	make field FIELDFLAGS='-cases NAME -v'
//
// Program smcrfield makes the table of all cases and modes. TestField of package e2e runs
// those that are marked as quick.
//
// What belongs here is what one connection, listener or program shows within seconds. Whole
// programs and suites of others are in package suites, and the socket API call by call is in
// testdata/sockapi.py of package e2e. How service managers start programs (notification,
// forking, socket activation) is not here: it needs no second mode to be judged by.
//
// A run needs root, python3 and what package netnstest needs. Each program has a time limit.
// The network namespaces are those of package netnstest, so a killed run leaves nothing that
// the next one does not remove.
package field
