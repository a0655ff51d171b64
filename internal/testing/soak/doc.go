// SPDX-License-Identifier: Apache-2.0

// Soak runs the product for a long time, with checksummed traffic, and looks for what is
// corrupted, hangs, ends or grows.
//
//	soak [-time 30m] [-seed N]          all kinds of traffic, with faults at random times
//	soak connections [-n 1000000]       connections that are opened and closed
//	soak open [-n 10000]                connections that are open at the same time
//	soak flood [-time 5m] [-run REGEXP] each kind of flood beside connections of others
//	soak rounds [-n 500] [-run REGEXP]  what comes and goes, round after round: what is left
//
// `make soak`, `make connections`, `make open`, `make flood` and `make rounds` are the same. The exit
// status is 1 if anything was found, 2 if the run itself failed. SIGINT ends a run in
// order, with its summary. Progress and the summary are text on standard error. Each row
// of the summary is also a JSON line on standard output ([Row]).
//
// The runs use hosts that are network namespaces (package netnstest), with `smcr serve`
// and programs under `smcr run`. They need root. The program starts itself for that, with
// other arguments: as smcr with a gauge (package gauge), as a server and as a client of
// traffic (package traffic).
//
// What belongs here is the runs, the faults and the judgement: which faults may end
// connections, and by how much a process may grow. How an attack works belongs to package
// adversary. Tests of one fault or one feature belong to package e2e.
package main
