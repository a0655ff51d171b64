// SPDX-License-Identifier: Apache-2.0

// Package verbstest is the suite that every provider of package rdmaverbs
// passes: what SMC-R needs of an RDMA device, tested through the verbs
// interface alone, and benchmarks to compare providers with.
//
// A provider's test calls [Run] with a function that opens two devices that
// reach each other:
//
//	func TestVerbs(t *testing.T) {
//		verbstest.Run(t, func(t testing.TB) verbstest.Pair { ... })
//	}
//
// [Cases] gives the single cases, for tests that run each of them in a
// testing/synctest bubble. Tests of the provider's own make connected queue
// pairs with [Connect].
//
// The package needs no privileges of its own and starts no goroutines. All
// waits are bounded.
package verbstest
