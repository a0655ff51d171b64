// SPDX-License-Identifier: Apache-2.0

package cmd

import "smcr/internal/testing/testkind"

var _ = testkind.Signals()
