// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Errors of systemd.
var (
	// ErrNotFound means that there is no such unit.
	ErrNotFound = errors.New("no such unit")
	// ErrNoSystemd means that no systemd runs on this machine.
	ErrNoSystemd = errors.New("no systemd runs here")
)

const (
	// dropInName is the drop-in file with which 'smcr service enable' of earlier releases put a unit under smcr run.
	dropInName = "zz-smcr.conf"
	// askTime limits a question to systemd. A start takes as long as the unit permits.
	askTime = 30 * time.Second
)

// systemd is the service manager of this machine.
type systemd struct {
	etc string // directory of the administrator's units
}

func newSystemd() systemd { return systemd{etc: "/etc/systemd/system"} }

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

// read reads a unit, as it is without the drop-in file of earlier releases.
func (s systemd) read(ctx context.Context, name string) (Unit, error) {
	u := Unit{Name: unitName(name)}
	var err error
	if _, is := template(u.Name); is {
		err = s.readTemplate(ctx, &u)
	} else if u.Props, err = s.show(ctx, u.Name, properties...); err == nil && u.Props["Id"] != "" {
		u.Name = u.Props["Id"] // name may be another name of it
	}
	if err != nil || u.Props["LoadState"] != "loaded" || filepath.Ext(u.Name) != ".service" {
		return u, err
	}
	out, err := s.ask(ctx, "cat", "--", u.Name)
	if err != nil {
		return u, err
	}
	u.Settings = parseCat(out, s.file(u.Name))
	return u, nil
}

// file returns the drop-in file of earlier releases for a unit.
func (s systemd) file(unit string) string { return filepath.Join(s.etc, unit+".d", dropInName) }

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
