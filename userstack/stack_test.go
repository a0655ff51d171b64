// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"testing"
)

func TestFirstContact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		b.exchange(c, s, pattern(1, 300<<10))
		b.exchange(s, c, pattern(2, 300<<10))
		b.finish(c, s)
	})
}
