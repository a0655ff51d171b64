// SPDX-License-Identifier: Apache-2.0

// Package codectest tests the texts in which programs of libibverbs and
// perftest tell each other their queue pairs. It needs no privileges. For tests
// alone.
package codectest
