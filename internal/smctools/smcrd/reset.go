// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/smc"
)

// errForeign means that another user could have written the cache file.
var errForeign = errors.New("it belongs to another user")

// SinceReset returns what was added to the counters of a stack since 'smcr stats
// reset'. It returns the counters themselves if there was no reset, or if the stack has
// restarted since. It reads the cache file of the smcr of smc-tools, and does not
// change it.
func SinceReset(e *tool.Env, stack string, s nl.Stats, f nl.Fallbacks) (nl.Stats, nl.Fallbacks, error) {
	path := cachePathOf(e, stack)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, f, nil
	}
	var before *counters
	if err == nil {
		defer file.Close()
		before, err = readCache(file, e.UID)
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
	return now.since(before).Stats, reasons, nil
}

func readCache(file *os.File, uid int) (*counters, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case !ok || int(sys.Uid) != uid:
		return nil, errForeign
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH); err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	return (&cacheFile{file}).read()
}

// Reset makes the counters of a stack count from these values on.
func Reset(e *tool.Env, stack string, s nl.Stats, f nl.Fallbacks) error {
	file, err := openCache(cachePathOf(e, stack))
	if err != nil {
		return err
	}
	defer file.Close()
	now := newCounters(s, f)
	return file.write(&now)
}
