// SPDX-License-Identifier: Apache-2.0

// Package sharetest has users take all that they can of a table that a stack keeps for all.
package sharetest
