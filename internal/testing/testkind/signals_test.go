// SPDX-License-Identifier: Apache-2.0

package testkind

var _ = Signals()
