// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"smcr/userstack/launch"
)

// Errors of systemd.
var (
	// ErrNotFound means that there is no such unit.
	ErrNotFound = errors.New("no such unit")
	// ErrNoSystemd means that no systemd runs on this machine.
	ErrNoSystemd = errors.New("no systemd runs here")
)

const (
	// dropInName is the last of a unit's drop-in files, which count in the order of their names.
	dropInName = "zz-smcr.conf"
	// askTime limits a question to systemd. A start takes as long as the unit permits.
	askTime = 30 * time.Second
)

// systemd is the service manager of this machine.
type systemd struct {
	etc  string // directory of the administrator's units
	proc string // mount point of procfs
}

func newSystemd() systemd { return systemd{etc: "/etc/systemd/system", proc: "/proc"} }

// call runs a program of systemd and returns its output.
func (systemd) call(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=cat")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrNoSystemd, err)
	case err != nil && strings.Contains(errs.String(), "not been booted with systemd"):
		return "", fmt.Errorf("%w: %s", ErrNoSystemd, strings.TrimSpace(errs.String()))
	case err != nil:
		return string(out), fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.Join(strings.Fields(errs.String()), " "))
	}
	return string(out), nil
}

// ask is call for a question.
func (s systemd) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return s.call(ctx, "systemctl", args...)
}

// read reads a unit, as it is without the drop-in file of smcr.
func (s systemd) read(ctx context.Context, name string) (Unit, error) {
	u := Unit{Name: unitName(name)}
	out, err := s.ask(ctx, "show", "--property="+strings.Join(properties, ","), "--", u.Name)
	if err != nil {
		return u, err
	}
	u.Props = parseShow(out)
	if id := u.Props["Id"]; id != "" {
		u.Name = id // name may be another name of it
	}
	if u.Props["LoadState"] != "loaded" || filepath.Ext(u.Name) != ".service" {
		return u, nil
	}
	if out, err = s.ask(ctx, "cat", "--", u.Name); err != nil {
		return u, err
	}
	u.Settings = parseCat(out, s.file(u.Name))
	return u, nil
}

// file returns the drop-in file of smcr for a unit.
func (s systemd) file(unit string) string { return filepath.Join(s.etc, unit+".d", dropInName) }

// Enabled reports whether a unit has the drop-in file of smcr.
func Enabled(unit string) bool {
	_, err := os.Stat(newSystemd().file(unitName(unit)))
	return err == nil
}

// enabled returns the units that have one.
func (s systemd) enabled() (units []string, err error) {
	files, err := filepath.Glob(filepath.Join(s.etc, "*.service.d", dropInName))
	for _, f := range files {
		units = append(units, strings.TrimSuffix(filepath.Base(filepath.Dir(f)), ".d"))
	}
	return units, err
}

// write writes the drop-in file of a unit as a whole. undo brings the former state back.
func (s systemd) write(unit, text string) (undo func() error, err error) {
	file := s.file(unit)
	before, rerr := os.ReadFile(file)
	if rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		return nil, rerr
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	if err := replace(file, []byte(text)); err != nil {
		return nil, err
	}
	return func() error {
		if rerr == nil {
			return replace(file, before)
		}
		return s.remove(unit)
	}, nil
}

// replace writes a file that is never there in part.
func replace(file string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".smcr-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// remove removes the drop-in file of a unit, and its directory if nothing else is there.
func (s systemd) remove(unit string) error {
	file := s.file(unit)
	if err := os.Remove(file); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(file))
	return nil
}

// reload makes systemd read its files again.
func (s systemd) reload(ctx context.Context) error {
	_, err := s.ask(ctx, "daemon-reload")
	return err
}

// verify returns what systemd says against the drop-in file of a unit.
func (s systemd) verify(ctx context.Context, unit, smcr string) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return nil // it is another package on some distributions
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dropInName) {
			return fmt.Errorf("systemd-analyze verify: %s", strings.TrimSpace(line))
		}
	}
	show, err := s.ask(ctx, "show", "--property=ExecStart", "--value", "--", unit)
	if err != nil {
		return err
	}
	if !strings.Contains(show, "path="+smcr+" ;") {
		return fmt.Errorf("another drop-in file of %s replaces ExecStart=: see 'systemctl cat %[1]s'", unit)
	}
	return nil
}

// pidFile returns the file below /run that names a process, whose path a unit's PIDFile= can have.
func (s systemd) pidFile(pid string) string {
	if pid == "" || pid == "0" {
		return ""
	}
	for _, pattern := range []string{"/run/*.pid", "/run/*/*.pid"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == pid {
				return f
			}
		}
	}
	return ""
}

// mainPIDFile returns the file that has the number of a unit's main process. If the unit does not
// run, it is the one that its drop-in file has, from an earlier 'smcr service enable'.
func (s systemd) mainPIDFile(u Unit) string {
	if file := s.pidFile(u.Props["MainPID"]); file != "" {
		return file
	}
	b, err := os.ReadFile(s.file(u.Name))
	if err != nil {
		return ""
	}
	return Unit{Settings: parseCat(string(b), "")}.setting("PIDFile")
}

// processes returns the processes of a unit.
func (s systemd) processes(u Unit) (pids []int) {
	if u.Props["ControlGroup"] == "" {
		return nil
	}
	root := filepath.Join("/sys/fs/cgroup", u.Props["ControlGroup"])
	if _, err := os.Stat("/sys/fs/cgroup/systemd"); err == nil { // cgroups of version 1
		root = filepath.Join("/sys/fs/cgroup/systemd", u.Props["ControlGroup"])
	}
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		b, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	slices.Sort(pids)
	return pids
}

// launchers returns those processes that are launchers of smcr run.
func (s systemd) launchers(pids []int) (launchers []int) {
	for _, pid := range pids {
		b, _ := os.ReadFile(filepath.Join(s.proc, strconv.Itoa(pid), "cmdline"))
		if _, ok := launch.IsLauncher(strings.Split(string(b), "\x00")); ok {
			launchers = append(launchers, pid)
		}
	}
	return launchers
}

// stackUnit returns the unit of the stack that a unit uses, or nothing if it is not installed.
func (s systemd) stackUnit(ctx context.Context, u Unit) string {
	name := "smcr.service"
	if ns := u.setting("NetworkNamespacePath"); ns != "" {
		name = "smcr@" + filepath.Base(ns) + ".service"
	}
	out, err := s.ask(ctx, "show", "--property=LoadState", "--value", "--", name)
	if err != nil || strings.TrimSpace(out) != "loaded" {
		return ""
	}
	return name
}

// journal returns the last lines that a unit has logged since a time.
func (s systemd) journal(ctx context.Context, unit string, since time.Time) []string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	out, err := s.call(ctx, "journalctl", "--unit="+unit, fmt.Sprintf("--since=@%d", since.Unix()), "--lines=8", "--output=cat", "--quiet")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(out), "\n")
}
