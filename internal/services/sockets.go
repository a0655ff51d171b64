// SPDX-License-Identifier: Apache-2.0

package services

import (
	"io/fs"
	"path/filepath"

	"smcr/internal/cgroup"
	"smcr/nl"
	"smcr/userstack/network"
)

// socketLists say which sockets a unit has.
type socketLists struct {
	// cgroups returns the numbers of a cgroup and of those in it.
	cgroups func(path string) []uint64
	// each calls found with each TCP socket of this network namespace, and the number of its cgroup.
	each func(found func(cookie, cgroup uint64, c nl.Connection)) error
}

func newSocketLists() socketLists {
	return socketLists{cgroupsIn, network.SockDiag{}.Each}
}

func cgroupsIn(p string) (ids []uint64) {
	top, err := cgroup.Top()
	if err != nil {
		return nil
	}
	_ = filepath.WalkDir(filepath.Join(top, p), func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // gone meanwhile
		}
		if id, err := cgroup.ID(dir); err == nil {
			ids = append(ids, id)
		}
		return nil
	})
	return ids
}
