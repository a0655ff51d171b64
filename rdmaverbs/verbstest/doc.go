// SPDX-License-Identifier: Apache-2.0

// Package verbstest has the tests that every provider of package rdmaverbs must
// pass: what SMC-R needs of an RDMA device, tested through the verbs interface
// alone. It also has benchmarks that compare providers.
//
// A provider's test calls [Run] with a function that opens two devices that
// reach each other:
//
//	func TestVerbs(t *testing.T) {
//		verbstest.Run(t, func(t testing.TB) verbstest.Pair { ... })
//	}
//
// [Cases] returns the single cases, for tests that run each of them in a
// testing/synctest bubble. Further tests of a provider create connected queue
// pairs with [Connect].
//
// The package needs no privileges and starts no goroutines. All waits have a
// limit, [Patience].
package verbstest
