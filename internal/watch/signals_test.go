// SPDX-License-Identifier: Apache-2.0

package watch

import "smcr/internal/testing/testkind"

var _ = testkind.Signals()
