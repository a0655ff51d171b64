// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
)

// A namespace is what names a network namespace on this machine.
type namespace struct {
	ino    uint64 // what its users see (net:[INO]); used again after its end
	cookie uint64 // never used again until the machine starts anew
}

// ownNamespace returns the network namespace of the calling thread.
func ownNamespace() (namespace, error) {
	cookie, err := place.Cookie()
	if err != nil {
		return namespace{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return namespace{}, fmt.Errorf("network namespace: %w", err)
	}
	return namespace{st.Ino, cookie}, nil
}
