// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"smcr/nl"
	"smcr/userstack/wire"
)

// DefaultUEID is the user-defined enterprise ID of 'smcr serve' without a configuration, and
// of a stack that [New] makes without Providers. So two such stacks use version 2 without any
// configuration. AddUEID and RemoveUEID of [Stack.Control] change the list.
const DefaultUEID = "SMCR-USERSTACK"

// eidTable holds the user-defined enterprise IDs in the order in which they
// were added.
type eidTable struct {
	mu  sync.Mutex
	ids []wire.EID
}

func (t *eidTable) list() []wire.EID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ids)
}

// add adds an ID. Its errors are those of the kernel, in the same order: EINVAL, ERANGE,
// EEXIST.
func (t *eidTable) add(s string) error {
	if err := nl.CheckEID(s); err != nil {
		return err
	}
	id, err := wire.ParseEID(s)
	if err != nil {
		return fmt.Errorf("%w: %w", err, os.ErrInvalid)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.ids) >= nl.MaxUEIDs:
		return fmt.Errorf("the stack holds at most %d enterprise IDs: %w", nl.MaxUEIDs, syscall.ERANGE)
	case slices.Contains(t.ids, id):
		return fmt.Errorf("enterprise ID %q: %w", id, syscall.EEXIST)
	}
	t.ids = append(t.ids, id)
	return nil
}

func (t *eidTable) remove(s string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, err := wire.ParseEID(s)
	i := slices.Index(t.ids, id)
	if err != nil || i < 0 {
		return fmt.Errorf("no such enterprise ID: %w", syscall.ENOENT)
	}
	t.ids = slices.Delete(t.ids, i, i+1)
	return nil
}

func (t *eidTable) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids = nil
}
