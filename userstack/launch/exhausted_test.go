// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestWithRoom: what is exhausted is waited for, for a bounded time. Other errors are
// returned at once.
func TestWithRoom(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		name  string
		fails error
		times int // how often f fails
		calls int // how often it must be called, 0 if that depends on the time
		want  error
	}{
		{"in order", nil, 0, 1, nil},
		{"two failures", fmt.Errorf("open: %w", unix.EMFILE), 2, 3, nil},
		{"another error", unix.ESRCH, 5, 1, unix.ESRCH},
		{"an end of file", io.EOF, 5, 1, io.EOF},
		{"without end", unix.ENOMEM, 1 << 30, 0, unix.ENOMEM},
	} {
		calls := 0
		v, err := withRoom(func() (int, error) {
			if calls++; calls <= tt.times {
				return -1, tt.fails
			}
			return 7, nil
		})
		if !errors.Is(err, tt.want) || tt.want == nil && v != 7 {
			t.Errorf("%s: %d, %v", tt.name, v, err)
		}
		if tt.calls > 0 && calls != tt.calls || tt.calls == 0 && calls < 3 {
			t.Errorf("%s: %d calls", tt.name, calls)
		}
	}
}
