// SPDX-License-Identifier: Apache-2.0

// Webclient downloads a URL with ordinary HTTP and prints bytes, SHA-256 and
// throughput; it fails when the server's X-Content-Sha256 differs. It knows
// nothing of SMC; under `smcr run` its connections use it. Needs no
// privileges.
package main
