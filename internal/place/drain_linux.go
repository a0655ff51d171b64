// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const drainPrefix = "drain-"

func drainName(n int) string { return fmt.Sprint(drainPrefix, n) }

// writeDrain writes the file that says about the process of part n what Draining returns. All users
// may read it.
func writeDrain(dir string, n int, until time.Time) error {
	end := int64(0)
	if !until.IsZero() {
		end = until.UnixMilli()
	}
	name := filepath.Join(dir, drainName(n))
	if err := os.WriteFile(name, fmt.Appendln(nil, os.Getpid(), time.Now().UnixMilli(), end), 0o644); err != nil {
		return err
	}
	return os.Chmod(name, 0o644)
}

// Draining returns what is known of the stacks of [Ending], the one that handed over first in front.
// Those of a release that does not say it are not among them.
func Draining() []Drain {
	v, err := current()
	if err != nil {
		return nil
	}
	return v.draining()
}

func (v *view) draining() (all []Drain) {
	for _, base := range v.bases() {
		if _, err := v.check(base); err != nil {
			continue
		}
		names, _ := filepath.Glob(filepath.Join(v.dir(base), endingPrefix+"*"))
		for _, name := range names {
			d := Drain{Name: filepath.Base(name)}
			b, err := readShort(filepath.Join(v.dir(base), drainPrefix+strings.TrimPrefix(d.Name, endingPrefix)))
			var since, until int64
			if _, serr := fmt.Sscan(string(b), &d.PID, &since, &until); err != nil || serr != nil {
				continue
			}
			d.Since = time.UnixMilli(since)
			if until != 0 {
				d.Until = time.UnixMilli(until)
			}
			all = append(all, d)
		}
		if len(all) > 0 {
			break
		}
	}
	slices.SortStableFunc(all, func(a, b Drain) int { return a.Since.Compare(b.Since) })
	return all
}

// readShort reads a regular file.
func readShort(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fs.ErrInvalid
	}
	return io.ReadAll(io.LimitReader(f, 128))
}
