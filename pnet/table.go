// SPDX-License-Identifier: Apache-2.0

package pnet

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Limits of the names in an entry, in bytes, as in the kernel.
const (
	MaxNetDevLen = 15 // of the name of a netdev (IFNAMSIZ-1)
	MaxIBDevLen  = 63 // of the name of an RDMA device (IB_DEVICE_NAME_MAX-1)
	MaxIBPort    = 2  // largest port number of an RDMA device
)

// An Entry assigns a pnetid to a network device or to a RoCE port. An entry that is
// added may name both.
type Entry struct {
	ID     string // the pnetid
	NetDev string // name of a network device, or ""
	IBDev  string // name of a RoCE device, or ""
	IBPort uint8  // port of IBDev, 1 or 2; 0 means 1 when an entry is added
}

// normalize returns e as it is stored.
func (e Entry) normalize() (Entry, error) {
	id, err := Normalize(e.ID)
	if err != nil {
		return Entry{}, err
	}
	e.ID = id
	switch {
	case e.NetDev == "" && e.IBDev == "":
		return Entry{}, &InvalidError{e.ID, "name a network device or a RoCE device"}
	case len(e.NetDev) > MaxNetDevLen:
		return Entry{}, &InvalidError{e.NetDev, "the name of a network device has at most 15 characters"}
	case len(e.IBDev) > MaxIBDevLen:
		return Entry{}, &InvalidError{e.IBDev, "the name of a RoCE device has at most 63 characters"}
	case strings.ContainsRune(e.NetDev, 0) || strings.ContainsRune(e.IBDev, 0):
		return Entry{}, &InvalidError{e.NetDev + e.IBDev, "a device name has no NUL character"}
	case e.IBPort > MaxIBPort:
		return Entry{}, &InvalidError{fmt.Sprint(e.IBPort), "a RoCE port is 1 or 2"}
	case e.IBDev == "":
		e.IBPort = 0
	case e.IBPort == 0:
		e.IBPort = 1
	}
	return e, nil
}

// A Table holds pnetid entries. The zero value is an empty table, ready to use.
type Table struct {
	mu      sync.RWMutex
	entries []Entry
}

// Add stores an entry. An entry with both devices becomes two entries; one that the
// table has already is left out. Add returns an *[InvalidError] for an entry that is
// not valid. It returns an error that matches [os.ErrExist] if a device has a different
// entry, or if the table has everything already. A RoCE device has one entry, whatever
// its port. After an error nothing is stored.
func (t *Table) Add(e Entry) error {
	e, err := e.normalize()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()

	var add []Entry
	for _, half := range split(e) {
		i := slices.IndexFunc(t.entries, half.sameDevice)
		switch {
		case i < 0:
			add = append(add, half)
		case t.entries[i] != half:
			return fmt.Errorf("pnet: %s has pnetid %s: %w", t.entries[i].device(), t.entries[i].ID, os.ErrExist)
		}
	}
	if len(add) == 0 {
		return fmt.Errorf("pnet: pnetid %s is already in the table: %w", e.ID, os.ErrExist)
	}
	t.entries = append(t.entries, add...)
	return nil
}

// split returns one entry for each device of e.
func split(e Entry) []Entry {
	var s []Entry
	if e.NetDev != "" {
		s = append(s, Entry{ID: e.ID, NetDev: e.NetDev})
	}
	if e.IBDev != "" {
		s = append(s, Entry{ID: e.ID, IBDev: e.IBDev, IBPort: e.IBPort})
	}
	return s
}

func (e Entry) sameDevice(o Entry) bool {
	return e.NetDev == o.NetDev && e.IBDev == o.IBDev
}

func (e Entry) device() string {
	if e.NetDev != "" {
		return "network device " + e.NetDev
	}
	return fmt.Sprintf("port %d of RoCE device %s", e.IBPort, e.IBDev)
}

// Remove removes all entries of a pnetid. It does not normalize id: stored pnetids have
// no lower-case letters. The error matches [os.ErrNotExist] if there is no entry.
func (t *Table) Remove(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e Entry) bool { return e.ID == id })
	if len(t.entries) == n {
		return fmt.Errorf("pnet: no pnetid %s: %w", id, os.ErrNotExist)
	}
	return nil
}

// Flush removes all entries.
func (t *Table) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = nil
}

// Entries returns a copy of the table, in the order in which entries were added.
func (t *Table) Entries() []Entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.entries)
}

// NetDev returns the pnetid of a network device, or "" if it has none.
func (t *Table) NetDev(name string) string {
	return t.find(Entry{NetDev: name}.sameDevice)
}

// IBPort returns the pnetid of a port of a RoCE device, or "" if it has none.
func (t *Table) IBPort(device string, port uint8) string {
	return t.find(func(e Entry) bool { return e.IBDev == device && e.IBPort == port && e.NetDev == "" })
}

func (t *Table) find(match func(Entry) bool) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if i := slices.IndexFunc(t.entries, match); i >= 0 {
		return t.entries[i].ID
	}
	return ""
}
