// SPDX-License-Identifier: Apache-2.0

// Smcrsuites runs test suites of others over kernel TCP and beneath `smcr run`, and prints
// which tests differ. `make test-suites` runs it.
//
//	smcrsuites -smcr bin/smcr [-suites NAMES] [-jobs REGEXP] [-modes NAMES] [-quick] [-list] [-logs FOLDER] [-slow N]
//
// The first run of a suite gets its source and builds it, in ~/.cache/smcr/suites. A suite
// whose packages are missing is left out, and said so. The output of each job is a file of
// -logs.
//
// The exit status is 1 if a test differs in all of its runs, 2 if the run failed.
package main
