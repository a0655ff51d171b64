// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"smcr/internal/cmdutil"
)

func TestExplain(t *testing.T) {
	other := errors.New("other")
	for _, test := range []struct {
		err, is error
		want    string
	}{
		{fmt.Errorf("%w x", ErrNotFound), os.ErrNotExist, ErrNotFound.Error() + " x"},
		{fmt.Errorf("%w x", ErrAmbiguous), os.ErrInvalid, ErrAmbiguous.Error() + " x: give one"},
		{fmt.Errorf("%w x", ErrShared), os.ErrInvalid, ErrShared.Error() + " x: give one"},
		{other, other, "other"},
	} {
		got := Explain(test.err, "give one")
		if !errors.Is(got, test.is) || !errors.Is(got, test.err) || cmdutil.Message(got) != test.want {
			t.Errorf("%v: %q, want %q", test.err, cmdutil.Message(got), test.want)
		}
	}
	if Explain(nil, "") != nil {
		t.Error("no error became one")
	}
}
