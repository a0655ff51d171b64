// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
)

// TestInTime: the end of the stack is awaited for a limited time.
func TestInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := inTime(t.Context(), func(context.Context) error { return io.EOF }); !errors.Is(err, io.EOF) {
			t.Errorf("idle: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := inTime(ctx, func(ctx context.Context) error { <-ctx.Done(); return io.EOF }); !errors.Is(err, io.EOF) {
			t.Errorf("in order: %v", err)
		}
		held := make(chan struct{})
		defer close(held)
		if err := inTime(ctx, func(context.Context) error { <-held; return nil }); !errors.Is(err, errEnd) {
			t.Errorf("held up: %v", err)
		}
	})
}
