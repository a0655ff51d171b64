// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"log/slog"

	"smcr/internal/place"
)

// sweep removes what stacks of network namespaces that are gone have left. A stack that is not root's may not do it
// in root's directories, so who prepares its place does.
func sweep(log *slog.Logger) {
	removeStaleLogs(logDir)
	removeStaleStates(logDir, "")
	sweepPlaces(log)
}

// sweepPlaces is sweep for the directories of sockets. Only a process that can see all processes does this.
func sweepPlaces(log *slog.Logger) {
	if !seesAll() {
		return
	}
	if err := place.Sweep(namespaces); err != nil && !errors.Is(err, errHidden) {
		log.Warn("cannot remove the sockets of network namespaces that are gone", "err", err)
	}
}
