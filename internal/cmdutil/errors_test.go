// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"errors"
	"fmt"
	"testing"

	"smcr/nl"
)

func TestMessage(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&StatusError{Code: 7}, ""},
		{&StatusError{Code: 7, Err: errors.New("launch: no such program")}, "no such program"},
		{fmt.Errorf("userstack: %w", nl.ErrNoBackend), "no such SMC stack"},
		{fmt.Errorf("nl: list: %w", Say(nl.ErrNoBackend, "no stack runs here")), "no stack runs here"},
	} {
		if got := Message(test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}
