// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"errors"
	"os"

	"smcr/internal/cmdutil"
)

// Explain gives an error of this package the text and the exit status that commands have for it. otherwise is what to give to the command
// in place of a name that does not say which cgroup is meant. Other errors, and nil, stay as they are.
func Explain(err error, otherwise string) error {
	switch {
	case errors.Is(err, ErrNotFound):
		return cmdutil.Say(errors.Join(os.ErrNotExist, err), "%v", err)
	case errors.Is(err, ErrAmbiguous), errors.Is(err, ErrShared):
		return cmdutil.Say(errors.Join(os.ErrInvalid, err), "%v: %s", err, otherwise)
	}
	return err
}
