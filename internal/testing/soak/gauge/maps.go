// SPDX-License-Identifier: Apache-2.0

package gauge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// Entries returns how many entries the hash maps of eBPF have for which a process has
// descriptors, by the names of the maps. LRU maps are left out: their memory is allocated
// when they are made, and the newest entries stay in them. It needs CAP_SYS_ADMIN. The count
// of a map that changes meanwhile is not exact.
func Entries(pid int) (map[string]int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fdinfo")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("gauge: %w", err)
	}
	counts, seen := map[string]int{}, map[int]bool{}
	for _, fd := range fds {
		b, err := os.ReadFile(filepath.Join(dir, fd.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is closed
		}
		if err != nil {
			return nil, fmt.Errorf("gauge: %w", err)
		}
		id, ok := mapID(b)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		if err := count(ebpf.MapID(id), counts); err != nil {
			return nil, fmt.Errorf("gauge: map %d: %w", id, err)
		}
	}
	return counts, nil
}

// mapID returns the number of the map that a file of fdinfo describes.
func mapID(fdinfo []byte) (int, bool) {
	for sc := bufio.NewScanner(bytes.NewReader(fdinfo)); sc.Scan(); {
		if text, ok := strings.CutPrefix(sc.Text(), "map_id:"); ok {
			id, err := strconv.Atoi(strings.TrimSpace(text))
			return id, err == nil
		}
	}
	return 0, false
}

// count adds the entries of a map, if it is one that grows.
func count(id ebpf.MapID, counts map[string]int) error {
	m, err := ebpf.NewMapFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	switch m.Type() {
	case ebpf.Hash, ebpf.PerCPUHash:
	default:
		return nil
	}
	info, err := m.Info()
	if err != nil {
		return err
	}
	n := 0
	key := make([]byte, m.KeySize())
	for err = m.NextKey(nil, key); err == nil && n <= int(m.MaxEntries()); n++ {
		err = m.NextKey(key, key)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	counts[info.Name] += n
	return nil
}
