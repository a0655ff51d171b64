// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
		case reasons == 2*maxReasons+2:
			if err := out.readOwn(sc.Bytes()); err != nil {
				return nil, err
			}
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

// write replaces the content of the file. If there is no room for the new content, the file
// keeps the old one. The file stays the same inode, because other programs that wait for its
// lock, also those of smc-tools, have it open.
func (c *cacheFile) write(v *counters) error {
	old, err := io.ReadAll(io.NewSectionReader(c.f, 0, maxContent))
	if err != nil {
		return fmt.Errorf("read cache file: %w", err)
	}
	if err := c.replace(v.content()); err != nil {
		// The old content had its room before, so it has it now.
		return errors.Join(err, c.replace(old))
	}
	return nil
}

// maxContent is more than the content of a cache file can have, in bytes.
const maxContent = 64 << 10

// content returns the counters in the form of the file.
func (v *counters) content() []byte {
	var b []byte
	for i, n := range v.numbers() {
		b = fmt.Appendf(b, "%-12d%-16d\n", i, *n)
	}
	for i, r := range append(v.server[:], v.client[:]...) {
		b = fmt.Appendf(b, "%-12d%-16d%-16d\n", i, r.code, r.count)
	}
	b = fmt.Appendf(b, "%16d\n%16d\n", v.serverSum, v.clientSum)
	return append(b, v.ownLine()...)
}

// replace writes the content over the present one. It truncates the file afterwards, so that
// no other file can get the room of the present content meanwhile.
func (c *cacheFile) replace(content []byte) error {
	if _, err := c.f.WriteAt(content, 0); err != nil {
		return &cacheError{"write cache file", err}
	}
	if err := c.f.Truncate(int64(len(content))); err != nil {
		return &cacheError{"ftruncate", err}
	}
	return nil
}
