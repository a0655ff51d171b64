// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package exporter

const withCgo = true // the threads cannot be changed together: see package confine
