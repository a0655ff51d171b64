// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"smcr/nl"
)

// A File is one of the files of a configuration.
type File struct {
	Path string
	Text []byte
}

// DropIns returns the directory of the drop-in files of a configuration file.
func DropIns(path string) string { return path + ".d" }

// Files reads a configuration file and its drop-in files, which are those with a name that ends in ".yaml" and does not begin with a
// dot, in the order of their names. Each of them may be missing; if all are, the error matches [fs.ErrNotExist].
func Files(path string) ([]File, error) {
	var all []File
	text, missing := readFile(path)
	switch {
	case missing == nil:
		all = append(all, File{path, text})
	case !errors.Is(missing, fs.ErrNotExist):
		return nil, missing
	}
	dir := DropIns(path)
	entries, err := os.ReadDir(dir) // in the order of names
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("config: %w", err)
	}
	size := len(text)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".yaml") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		file := filepath.Join(dir, e.Name())
		text, err := readDropIn(file)
		if _, gone := os.Lstat(file); errors.Is(err, fs.ErrNotExist) && errors.Is(gone, fs.ErrNotExist) {
			continue // since the list was read
		}
		if err != nil {
			return nil, err
		}
		if size += len(text); size > MaxSize {
			return nil, Errors{{File: file, Text: fmt.Sprintf("with it, the files of the configuration are larger than %d KiB", MaxSize>>10)}}
		}
		all = append(all, File{file, text})
	}
	if len(all) == 0 {
		return nil, missing
	}
	return all, nil
}

// readFile reads a file, and one byte more than [MaxSize] of a larger one.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return b, nil
}

// readDropIn is readFile for what a directory has, which may be something that nobody can read to its end. A link to /dev/null is an
// empty file, as it is for systemd.
func readDropIn(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if m := info.Mode(); !m.IsRegular() && m&fs.ModeCharDevice == 0 {
		return nil, Errors{{File: path, Text: "it is not a regular file"}}
	}
	return readFile(path)
}

// Paths returns the paths of files.
func Paths(files []File) []string {
	var all []string
	for _, f := range files {
		all = append(all, f.Path)
	}
	return all
}

// Load reads and parses the configuration file at path and its drop-in files.
func Load(path string) (*Config, error) {
	files, err := Files(path)
	if err != nil {
		return nil, err
	}
	return Merge(files)
}

// Merge parses files, the later of which say more than the earlier ones:
//
//	in two files             | together
//	-------------------------+---------------------------------------------
//	true or false            | that of the later file
//	lists                    | the entries of both, in this order
//	entries of one device,   | that of the later file, in the place of the
//	cgroup, enterprise ID    | earlier one
//	an empty list            | the other list; both empty: empty
//	a section in one of them | that section
//
// What a stack bounds, it bounds of all files together. The error is an [Errors] with all errors in all files.
func Merge(files []File) (*Config, error) {
	m := merged{Config: &Config{}}
	var errs Errors
	for _, f := range files {
		c, p, err := parseFile(f.Text)
		var wrong Errors
		switch {
		case errors.As(err, &wrong):
			for _, e := range wrong {
				e.File = f.Path
			}
			errs = append(errs, wrong...)
		case err != nil:
			return nil, err
		default:
			p.path = f.Path
			m.add(c, p)
		}
	}
	if len(errs) == 0 { // what the files say together is known
		errs = m.errors()
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return m.Config, nil
}

// A merged is what some files say together, and where.
type merged struct {
	*Config
	seid *parser // of the file that has SEID
	errs Errors
}

func (m *merged) add(c *Config, p *parser) {
	if len(m.errs) > 0 {
		return // it is too much already
	}
	m.PNETs = join(m.PNETs, c.PNETs, func(a, b nl.PNET) bool {
		return a.NetDev == b.NetDev && a.IBDev == b.IBDev // whatever the port, as in a stack
	})
	m.UEIDs = join(m.UEIDs, c.UEIDs, equal)
	m.Programs = join(m.Programs, c.Programs, Program.samePath)
	if n := len(m.UEIDs); n > nl.MaxUEIDs {
		m.fail(p, "ueids", "%d enterprise IDs: a stack holds at most %d", n, nl.MaxUEIDs)
	}
	if n := len(m.Programs); n > MaxPrograms {
		m.fail(p, "programs", "%d entries of programs: a stack holds at most %d", n, MaxPrograms)
	}
	if c.SEID != nil {
		m.SEID, m.seid = c.SEID, p
	}
	if c.HSLimitation != nil {
		m.HSLimitation = c.HSLimitation
	}
}

// fail notes an error in a section of a file.
func (m *merged) fail(p *parser, key, format string, args ...any) {
	m.errs = append(m.errs, &Error{File: p.path, Line: p.line(key, -1), Text: fmt.Sprintf(format, args...)})
}

func (m *merged) errors() Errors {
	if m.SEID != nil && !*m.SEID && m.UEIDs != nil && len(m.UEIDs) == 0 {
		m.fail(m.seid, "seid", "the system enterprise ID can be disabled only if there is a user-defined one")
	}
	return m.errs
}

// join returns the entries of an earlier list, those that same says are in the later list, too, as they are there, and then the other ones
// of that. It is nil if both lists are.
func join[T any](earlier, later []T, same func(a, b T) bool) []T {
	out := earlier
	for _, x := range later {
		if i := slices.IndexFunc(earlier, func(y T) bool { return same(x, y) }); i >= 0 {
			out[i] = x
			continue
		}
		out = append(out, x)
	}
	if out == nil && later != nil {
		out = []T{}
	}
	return out
}
