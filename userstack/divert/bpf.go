// SPDX-License-Identifier: Apache-2.0

package divert

//go:generate ../../scripts/bpf
