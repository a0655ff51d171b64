// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
)

// A namespace identifies a network namespace on this machine.
type namespace struct {
	ino    uint64 // the number that users see (net:[INO]); reused after its end
	cookie uint64 // not reused until the machine restarts
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
