// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package exporter

const withCgo = false
