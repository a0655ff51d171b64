// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"syscall"
	"time"
)

// The pause after the first failure, which doubles up to the longest one.
const (
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// NoMemory reports whether an error says that the kernel had no memory for a call on a
// socket: ENOMEM or ENOBUFS. The call had no effect.
func NoMemory(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS)
}

// While calls f. As long as passes holds for the error of f, While calls f again, after
// pauses. It does so for at most limit, which does not include the time of the last call. It
// returns the last error of f. It does not allocate.
func While(passes func(error) bool, limit time.Duration, f func() error) error {
	err := f()
	if err == nil || !passes(err) {
		return err
	}
	deadline := time.Now().Add(limit)
	for pause := firstPause; time.Now().Before(deadline); pause = min(2*pause, lastPause) {
		time.Sleep(min(pause, time.Until(deadline)))
		if err = f(); err == nil || !passes(err) {
			break
		}
	}
	return err
}
