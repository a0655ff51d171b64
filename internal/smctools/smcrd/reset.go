// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/smc"
)

// SinceReset returns what was added to the counters of a stack since 'smcr stats
// reset'. It returns the counters themselves if there was no reset, or if the stack has
// restarted since. It reads the cache file of the smcr of smc-tools, and does not
// change it. A file of another user has no reset of this user, so it is ignored.
func SinceReset(e *tool.Env, stack string, s nl.Stats, f nl.Fallbacks) (nl.Stats, nl.Fallbacks, error) {
	path := cachePathOf(e, stack)
	file, err := openCache(path, e.UID, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errForeign) {
		return s, f, nil
	}
	var before *counters
	if err == nil {
		defer file.Close()
		before, err = file.read()
	}
	if err != nil {
		return s, f, fmt.Errorf("cannot read the counters of the last 'smcr stats reset' from %s: %w; remove the file or use --absolute", path, err)
	}
	now := newCounters(s, f)
	if before == nil || !now.follow(before) {
		return s, f, nil
	}
	reasons := nl.Fallbacks{
		ClientTotal: f.ClientTotal - min(before.clientSum, f.ClientTotal),
		ServerTotal: f.ServerTotal - min(before.serverSum, f.ServerTotal),
	}
	for _, r := range f.Reasons {
		list := &before.client
		if r.Side != smc.Client {
			list = &before.server
		}
		r.Count -= min(uint64(max(count(list, int32(r.Reason)), 0)), r.Count)
		if r.Count > 0 {
			reasons.Reasons = append(reasons.Reasons, r)
		}
	}
	since := now.since(before)
	reasons.PeerReasons = since.peers
	return since.Stats, reasons, nil
}

// Reset makes the counters of a stack count from these values on. If this cannot be kept, they
// count from the reset before.
func Reset(e *tool.Env, stack string, s nl.Stats, f nl.Fallbacks) error {
	file, err := openCache(cachePathOf(e, stack), e.UID, unix.O_RDWR)
	if err != nil {
		return fmt.Errorf("%w; %s can name another file", err, CacheEnv)
	}
	defer file.Close()
	now := newCounters(s, f)
	if err := file.write(&now); err != nil {
		return fmt.Errorf("the counters are not reset: %w; %s can name another file", err, CacheEnv)
	}
	return nil
}
