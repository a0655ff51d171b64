// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The types that bpf2go makes are those of the programs, byte for byte, so their memory is what the kernel takes: package ebpf would
// encode each field by reflection, for each connection several times.

// look reads the value of a connection.
func look[V bpfFlow | bpfWay](m *ebpf.Map, key bpfTuple, v *V) error {
	return m.Lookup(unsafe.Pointer(&key), unsafe.Pointer(v))
}

// put writes the value of a connection.
func put[V bpfFlow | bpfWay | bpfShift](m *ebpf.Map, key bpfTuple, v *V, flags ebpf.MapUpdateFlags) error {
	return m.Update(unsafe.Pointer(&key), unsafe.Pointer(v), flags)
}

// drop deletes the entry of a connection.
func drop(m *ebpf.Map, key bpfTuple) error { return m.Delete(unsafe.Pointer(&key)) }

// each calls f with each entry of a hash map, which it reads by one call for some hundred of them.
func each[K, V any](m *ebpf.Map, f func(key *K, v *V)) error { return eachBy(m, 256, f) }

// eachBy reads so many entries at a time. If one bucket of the map has more, it reads more.
func eachBy[K, V any](m *ebpf.Map, most int, f func(key *K, v *V)) error {
	var at ebpf.MapBatchCursor
	keys, values := make([]K, most), make([]V, most)
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		if errors.Is(err, unix.ENOSPC) {
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
			continue
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("divert: read a map: %w", err)
		}
		for i := range n {
			f(&keys[i], &values[i])
		}
		if err != nil { // the end
			return nil
		}
	}
}

// tryRemoveAll has package ebpf find out whether the kernel deletes many entries in one call, which it does once such a call has failed:
// later, a stack may not make the map that this takes.
func tryRemoveAll(m *ebpf.Map) error {
	if _, err := m.BatchDelete(make([]bpfTuple, 1), nil); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("divert: delete several entries of a map: %w", err)
	}
	return nil
}

// removeAll deletes entries, in as few calls as there can be. removed, if not nil, is called with the index of each key that was there.
func removeAll(m *ebpf.Map, keys []bpfTuple, removed func(i int)) {
	for from := 0; from < len(keys); {
		n, err := m.BatchDelete(keys[from:], nil)
		for i := range n {
			if removed != nil {
				removed(from + i)
			}
		}
		if from += n; err != nil || n == 0 { // the next one is not there
			from++
		}
	}
}
