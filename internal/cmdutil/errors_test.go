// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"smcr/nl"
)

func TestMessage(t *testing.T) {
	evil := &os.PathError{Op: "open", Path: "a\nb\x1b", Err: os.ErrNotExist}
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&StatusError{Code: 7}, ""},
		{&StatusError{Code: 7, Err: errors.New("service: no such program")}, "no such program"},
		{fmt.Errorf("userstack: %w", nl.ErrNoBackend), "no such SMC stack"},
		{fmt.Errorf("nl: list: %w", Say(nl.ErrNoBackend, "no stack runs here")), "no stack runs here"},
		// Joined errors are lines, also in another error. What is in a name is not.
		{fmt.Errorf("start: %w", errors.Join(errors.New("wire: one"), fmt.Errorf("two: %w", evil))), "start: one\ntwo: open a?b?: file does not exist"},
		{evil, "open a?b?: file does not exist"},
		{fmt.Errorf("%w: after %w", evil, errors.ErrUnsupported), "open a?b?: file does not exist: after unsupported operation"},
		{errors.Join(evil), "open a?b?: file does not exist"},
		{fmt.Errorf("%w: after", errors.Join(evil, os.ErrExist)), "open a?b?: file does not exist\nfile already exists: after"},
		{Say(evil, "a\nb\r"), "a?b?"},
		{&Error{Text: "a\nb", More: []string{"c\nd", " e"}}, "a?b\nc?d\n e"},
		{&StatusError{Code: 1, Err: &Error{Text: "a", More: []string{"b"}}}, "a\nb"},
		{errors.New("a\nb"), "a?b"},
	} {
		if got := Message(test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}
