// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// TestRemoveAll: of all keys, those are removed and told that are there, wherever others are missing.
func TestRemoveAll(t *testing.T) {
	testkind.System(t)
	_ = rlimit.RemoveMemlock()
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(spec.Maps[bpfMapWays])
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := tryRemoveAll(m); err != nil {
		t.Fatal(err)
	}
	for _, missing := range [][]int{nil, {0}, {4}, {2}, {0, 1}, {1, 3}, {3, 4}, {0, 1, 2, 3, 4}} {
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			keys := make([]bpfTuple, 5)
			var want, got []int
			for i := range keys {
				keys[i].Lport = uint16(i)
				if slices.Contains(missing, i) {
					continue
				}
				if err := m.Put(&keys[i], &bpfWay{State: wayOuter}); err != nil {
					t.Fatal(err)
				}
				var w bpfWay
				if err := look(m, keys[i], &w); err != nil || w.State != wayOuter {
					t.Fatalf("key %d: %v, %v", i, w, err)
				}
				want = append(want, i)
			}
			removeAll(m, keys, func(i int) { got = append(got, i) })
			if !slices.Equal(got, want) {
				t.Errorf("removed %v, want %v", got, want)
			}
			if key := (bpfTuple{}); !errors.Is(m.NextKey(nil, &key), ebpf.ErrKeyNotExist) {
				t.Errorf("%+v is left", key)
			}
		})
	}
}

// TestEach: each entry is read once, however many are read at a time, and however many are in a bucket of the map.
func TestEach(t *testing.T) {
	testkind.System(t)
	_ = rlimit.RemoveMemlock()
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	const all = 1000
	spec.Maps[bpfMapFlows].MaxEntries = all
	m, err := ebpf.NewMap(spec.Maps[bpfMapFlows])
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	n := 0
	for _, entries := range []int{0, 1, 256, 257, all} {
		for ; n < entries; n++ {
			if err := put(m, bpfTuple{Lport: uint16(n)}, &bpfFlow{Id: uint64(n)}, ebpf.UpdateNoExist); err != nil {
				t.Fatal(err)
			}
		}
		for _, most := range []int{1, 100, 256, all + 1} {
			seen := map[uint64]bool{}
			err := eachBy(m, most, func(key *bpfTuple, k *bpfFlow) {
				if seen[k.Id] || k.Id != uint64(key.Lport) {
					t.Errorf("%d entries, %d at a time: %d is the value of %d, seen before: %t", entries, most, k.Id, key.Lport, seen[k.Id])
				}
				seen[k.Id] = true
			})
			if err != nil || len(seen) != entries {
				t.Errorf("%d entries, %d at a time: %d, %v", entries, most, len(seen), err)
			}
		}
	}
}

// TestShiftsSize: the table of declined connections that pass has as many as the shares of users are made of.
func TestShiftsSize(t *testing.T) {
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	if n := spec.Maps[bpfMapShifts].MaxEntries; n != mostShifts {
		t.Errorf("the table takes %d, the shares are of %d", n, mostShifts)
	}
}

// TestMapsOf: of a program that has only some of the maps, as one of another release, none stays open.
func TestMapsOf(t *testing.T) {
	testkind.System(t)
	_ = rlimit.RemoveMemlock()
	o, err := loadPrograms(1, 2, 3, &Config{Flows: 16}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	info, err := o.Leaving.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	open := func() (n int) {
		all, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range all {
			if to, err := os.Readlink(fd); err == nil && to == "anon_inode:bpf-map" {
				n++
			}
		}
		return n
	}
	before := open()
	if all, err := mapsOf(id, bpfMapFlows, "other"); all != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("some of the maps: %v, %v", all, err)
	}
	if n := open(); n != before {
		t.Errorf("%d maps are open, and %d before", n, before)
	}
	all, err := mapsOf(id, bpfMapFlows, bpfMapWays)
	if err != nil || len(all) != 2 || open() != before+2 {
		t.Errorf("all of the maps: %v, %v", all, err)
	}
	for _, m := range all {
		_ = m.Close()
	}
}

// TestHops: where the packets of connections go is the same, whether the connections are looked up or the table is read.
func TestHops(t *testing.T) {
	testkind.System(t)
	m := newWays(t)
	const all = 3000
	for i := range all {
		if err := put(m, bpfTuple{Lport: uint16(i)}, &bpfWay{Via: bpfHop{Dev: uint32(i % 100)}}, ebpf.UpdateNoExist); err != nil {
			t.Fatal(err)
		}
	}
	few := int(m.MaxEntries()) / readsPerLook
	for _, n := range []int{0, 1, 50, few - 1, few, 2 * few} {
		of, want := map[bpfTuple]bool{}, map[bpfHop]bool{}
		for i := range n {
			of[bpfTuple{Lport: uint16(all - 1 - i)}] = true
			want[bpfHop{Dev: uint32((all - 1 - i) % 100)}] = true
		}
		of[bpfTuple{Lport: all}] = true // it has ended
		calls := countBPF(t)
		got, err := hopsOf(m, of)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%d connections: %v, %v", n, got, err)
		}
		if made := calls(); made > n+few {
			t.Errorf("%d connections: %d calls of bpf", n, made)
		}
	}
}

// BenchmarkHops compares both, to choose readsPerLook.
func BenchmarkHops(b *testing.B) {
	testkind.System(b)
	m := newWays(b)
	of := map[bpfTuple]bool{}
	for i := range 1000 {
		key := bpfTuple{Lport: uint16(i)}
		if of[key] = true; put(m, key, &bpfWay{}, ebpf.UpdateNoExist) != nil {
			b.Fatal("put")
		}
	}
	b.Run("look", func(b *testing.B) {
		var w bpfWay
		for b.Loop() {
			for key := range of {
				_ = look(m, key, &w)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		n := 0
		for b.Loop() {
			_ = each(m, func(*bpfTuple, *bpfWay) { n++ })
		}
	})
}

// newWays makes the table of ways.
func newWays(t testing.TB) *ebpf.Map {
	t.Helper()
	_ = rlimit.RemoveMemlock()
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(spec.Maps[bpfMapWays])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// countBPF returns how many calls of bpf this process has made since.
func countBPF(t *testing.T) func() int {
	t.Helper()
	c, err := netnstest.CountCalls(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return func() int {
		made, err := c.Each()
		if err != nil {
			t.Fatal(err)
		}
		return int(made[unix.SYS_BPF])
	}
}
