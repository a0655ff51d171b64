// SPDX-License-Identifier: Apache-2.0

package serve

import "smcr/internal/testing/testkind"

var _ = testkind.Signals()
