// SPDX-License-Identifier: Apache-2.0

// Package apps tests the programs below it: what Go programs that use net/http, gRPC and
// database/sql change to have SMC-R. Each program is complete and can be copied.
//
// It is a module of its own, because gRPC and the driver of PostgreSQL have dependencies that
// smcr does not need. Its go.mod also shows how a module uses smcr from a checkout: with a
// replace directive.
package apps
