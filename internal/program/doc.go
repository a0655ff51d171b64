// SPDX-License-Identifier: Apache-2.0

// Package program finds and executes programs, as a shell does. A process that executes one becomes it: the signals are those
// with which this process was started.
package program
