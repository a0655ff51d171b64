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

// DefaultUEID is the user-defined enterprise ID that 'smcr serve' gives its stack
// unless a configuration says otherwise, and that a stack made by [New] has unless
// its Config names a Provider, so that two such stacks use version 2 with nothing
// configured. AddUEID and RemoveUEID of [Stack.Control] change that.
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

// add adds an ID with the kernel's errors, in its order: EINVAL, ERANGE, EEXIST.
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
