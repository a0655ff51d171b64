// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
)

const (
	// ownName is the drop-in file of the configuration that enable and disable write. Others can come before it and after it.
	ownName = "50-services.yaml"
	// ownHead is how it begins.
	ownHead = "# 'smcr service enable' and 'smcr service disable' write this file.\n"
)

// ownFile returns the file that enable writes beside a configuration file, which belongs to the administrator and to the package.
func ownFile(conf string) string { return filepath.Join(config.DropIns(conf), ownName) }

// A change is a file of the configuration before and after a command. nil is one that is not there.
type change struct {
	file          string
	before, after []byte
}

// addEntries adds the parts to the drop-in file of enable, and prints how. An entry that an earlier release has added to the
// configuration file itself moves there; others stay where they are. undo brings the former files back.
func (o *options) addEntries(u Unit, parts []part) (undo func() error, err error) {
	conf := configOf(u, o.config)
	files, err := readFiles(conf)
	if err != nil {
		return nil, err
	}
	own := change{file: ownFile(conf), after: []byte(ownHead)}
	main := change{file: conf}
	var others []config.File
	for _, f := range files {
		if f.Path == own.file {
			own.before, own.after = notNil(f.Text), f.Text
			continue
		}
		others = append(others, f)
		if f.Path == conf {
			main.before, main.after = notNil(f.Text), notNil(f.Text)
		}
	}
	added := false
	for _, p := range parts {
		switch {
		case config.Adds(main.after, p.cgroup):
			if main.after, err = config.RemoveProgram(main.after, p.cgroup); err != nil {
				return nil, byHand(conf, p, err)
			}
		case slices.ContainsFunc(others, func(f config.File) bool { return holds(f, p.cgroup) }):
			continue
		}
		added = true
		if own.after, err = config.AddProgram(own.after, p.cgroup); err != nil {
			return nil, byHand(own.file, p, err)
		}
	}
	if !added {
		return func() error { return nil }, nil
	}
	// What moves is in both files for a moment, which means the same.
	return o.write(own, main)
}

// readFiles reads the files of a configuration, all of which are valid.
func readFiles(conf string) ([]config.File, error) {
	files, err := config.Files(conf)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		_, err = config.Merge(files)
	}
	return files, err
}

// holds reports whether a valid file has an entry.
func holds(f config.File, cgroup string) bool {
	c, err := config.Parse(f.Text)
	return err == nil && slices.ContainsFunc(c.Programs, func(x config.Program) bool { return x.Cgroup == cgroup })
}

// removeEntries removes the parts from all files of the configuration, and prints how. The drop-in file of enable goes when nothing is left
// in it.
func (o *options) removeEntries(u Unit, parts []part) error {
	conf := configOf(u, o.config)
	files, err := readFiles(conf)
	if err != nil {
		return err
	}
	var all []change
	for _, f := range files {
		c := change{f.Path, notNil(f.Text), notNil(f.Text)}
		for _, p := range parts {
			if c.after, err = config.RemoveProgram(c.after, p.cgroup); err != nil {
				return byHand(f.Path, p, err)
			}
		}
		if rest := string(c.after); f.Path == ownFile(conf) && (rest == ownHead || rest == "") {
			c.after = nil
		}
		all = append(all, c)
	}
	_, err = o.write(all...)
	return err
}

// notNil returns a text that says that its file is there.
func notNil(text []byte) []byte { return append([]byte{}, text...) }

// byHand says that a file is to be changed by hand for a part.
func byHand(file string, p part, err error) error {
	return &cmdutil.Error{
		Text: fmt.Sprintf("%s: nothing was changed: %v", file, err), Err: err,
		More: []string{fmt.Sprintf("the entry of programs for %s is 'cgroup: %s'", p.unit, p.cgroup)},
	}
}

// write makes changes, all or none, and prints them. undo brings the former files back.
func (o *options) write(all ...change) (undo func() error, err error) {
	var done []change
	undo = func() error {
		var errs []error
		for _, c := range slices.Backward(done) {
			errs = append(errs, put(c.file, c.before))
		}
		return errors.Join(errs...)
	}
	for _, c := range all {
		if string(c.before) == string(c.after) && (c.before == nil) == (c.after == nil) {
			continue
		}
		if info, err := os.Lstat(c.file); err == nil && info.Mode()&fs.ModeSymlink != 0 && c.after == nil {
			c.after = []byte{} // a link to nothing is no valid file
		}
		if real, err := filepath.EvalSymlinks(c.file); err == nil {
			c.file = real
		}
		if err := put(c.file, c.after); err != nil {
			return nil, errors.Join(err, undo())
		}
		done = append(done, c)
	}
	for _, c := range done {
		o.printLines(c.file, withoutHead(c.before), withoutHead(c.after))
	}
	return undo, nil
}

// withoutHead returns what of a file is to be printed.
func withoutHead(text []byte) string { return strings.TrimPrefix(string(text), ownHead) }

// put gives a file a content, or removes it if that is nil.
func put(file string, text []byte) error {
	if text == nil {
		return os.Remove(file)
	}
	if err := makeDirs(filepath.Dir(file)); err != nil {
		return err
	}
	return replace(file, text)
}

// makeDirs makes a directory that the user of the stack can read, whatever the umask is.
func makeDirs(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDirs(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
