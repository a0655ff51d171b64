// SPDX-License-Identifier: Apache-2.0

// Package codectest tests the codecs of the messages by which programs of libibverbs and
// perftest exchange their queue pairs. It needs no privileges.
package codectest
