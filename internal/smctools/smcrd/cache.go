// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
)

// read returns the content of the file, or nil if it is empty.
func (c *cacheFile) read() (*counters, error) {
	var out counters
	list := out.numbers()
	lines := 0
	sc := bufio.NewScanner(c.f)
	for ; sc.Scan(); lines++ {
		line := sc.Text()
		i, n := 0, uint64(0)
		switch reasons := lines - len(list); {
		case reasons < 0:
			if _, err := fmt.Sscan(line, &i, &n); err != nil {
				return nil, errors.New("parsing cache file(stats): Success")
			}
			if i != lines {
				return nil, errors.New("unexpected value in cache file: Success")
			}
			*list[i] = n
		case reasons < 2*maxReasons:
			var r reason
			if _, err := fmt.Sscan(line, &i, &r.code, &r.count); err != nil {
				return nil, errors.New("parsing cache file (fback stats): Success")
			}
			if i < 0 || i > 2*maxReasons {
				return nil, errors.New("unexpected value in cache file (fback stats): Success")
			}
			if reasons < maxReasons {
				out.server[reasons] = r
			} else {
				out.client[reasons-maxReasons] = r
			}
		case reasons < 2*maxReasons+2:
			if _, err := fmt.Sscan(line, &n); err != nil {
				return nil, errors.New("parsing cache file(fback counters): Success")
			}
			*[]*uint64{&out.serverSum, &out.clientSum}[reasons-2*maxReasons] = n
		default:
			return nil, errors.New("cache file corrupt: Success")
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("parsing cache file(stats): %s", reasonOf(err))
	}
	if lines == 0 {
		return nil, nil
	}
	return &out, nil
}

// write replaces the content of the file.
func (c *cacheFile) write(v *counters) error {
	if err := c.f.Truncate(0); err != nil {
		return fmt.Errorf("ftruncate: %s", reasonOf(err))
	}
	var b strings.Builder
	for i, n := range v.numbers() {
		fmt.Fprintf(&b, "%-12d%-16d\n", i, *n)
	}
	for i, r := range append(v.server[:], v.client[:]...) {
		fmt.Fprintf(&b, "%-12d%-16d%-16d\n", i, r.code, r.count)
	}
	fmt.Fprintf(&b, "%16d\n%16d\n", v.serverSum, v.clientSum)
	if _, err := c.f.WriteAt([]byte(b.String()), 0); err != nil {
		return fmt.Errorf("write cache file: %s", reasonOf(err))
	}
	return nil
}
