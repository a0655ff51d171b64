// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"smcr/internal/config"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/userstack"

	"golang.org/x/sys/unix"
)

// A lab starts stacks one after the other. Only their configuration is real.
type lab struct {
	t    *testing.T
	dir  string // of the state file
	conf string // configuration file
	log  strings.Builder
	wrap func(*nltest.Fake) nl.Control // or nil
}

func newLab(t *testing.T) *lab {
	return &lab{t: t, dir: t.TempDir(), conf: filepath.Join(t.TempDir(), "smcr.yaml")}
}

func (l *lab) configure(text string) {
	l.t.Helper()
	if err := os.WriteFile(l.conf, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// start returns the persistentControl of a new stack that has read its files.
func (l *lab) start() (*persistentControl, *configurator) {
	l.t.Helper()
	l.log.Reset()
	log := slog.New(slog.NewTextHandler(&l.log, nil))
	fake := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 2, Stack: "smcr"}})
	var ctl nl.Control = fake
	if l.wrap != nil {
		ctl = l.wrap(fake)
	}
	k := newPersistentControl(ctl, l.dir, l.dir, log)
	c := &configurator{path: l.conf, control: k, log: log}
	if _, err := config.Files(l.conf); err != nil {
		c.path = "" // the file of the host, which does not exist
	}
	if err := c.start(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	return k, c
}

// want checks the enterprise IDs and pnetids of a stack.
func (l *lab) want(k *persistentControl, eids []string, pnets ...string) {
	l.t.Helper()
	got, err := config.Export(l.t.Context(), k)
	if err != nil {
		l.t.Fatal(err)
	}
	var devices []string
	for _, p := range got.PNETs {
		devices = append(devices, p.ID+"="+p.NetDev+p.IBDev)
	}
	if !slices.Equal(got.UEIDs, eids) || !slices.Equal(devices, pnets) {
		l.t.Errorf("the stack has %v and %v, want %v and %v; log:\n%s", got.UEIDs, devices, eids, pnets, l.log.String())
	}
}

func (l *lab) must(errs ...error) {
	l.t.Helper()
	for _, err := range errs {
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// files returns the names of the files in the directory of the state file.
func (l *lab) files() (names []string) {
	l.t.Helper()
	entries, err := os.ReadDir(l.dir)
	l.must(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestStateLasts checks that changes by commands survive the end of the stack, until the
// configuration file changes.
func TestStateLasts(t *testing.T) {
	if _, err := os.Stat(config.DefaultPath); err == nil {
		t.Skip(config.DefaultPath + " is there: needs a machine without")
	}
	l, ctx := newLab(t), t.Context()
	k, _ := l.start()
	l.want(k, []string{})
	if names := l.files(); len(names) != 0 {
		t.Errorf("files before there is a change: %q", names)
	}
	l.must(k.AddUEID(ctx, "A.1"), k.AddPNET(ctx, nl.PNET{ID: "NET1", NetDev: "lo"}), k.AddPNET(ctx, nl.PNET{ID: "NET2", NetDev: "nosuch0"}), k.SetHSLimitation(ctx, true))
	info, err := k.SysInfo(ctx)
	l.must(err)
	st, err := os.Lstat(info.StateFile)
	if err != nil || info.StateError != "" || st.Mode() != 0o644 || !slices.Equal(l.files(), []string{filepath.Base(info.StateFile)}) {
		t.Fatalf("state file %q, %q: %v, %v; files %q", info.StateFile, info.StateError, st, err, l.files())
	}

	// The next stack has the changes, except for a device that does not exist any more.
	k, _ = l.start()
	l.want(k, []string{"A.1"}, "NET1=lo")
	if on, err := k.HSLimitation(ctx); err != nil || !on {
		t.Errorf("handshake limitation: %v, %v", on, err)
	}
	if !strings.Contains(l.log.String(), "no netdev nosuch0 in this") {
		t.Errorf("log:\n%s", l.log.String())
	}
	// A removal survives too. Without any change left, there is no state file.
	l.must(k.RemoveUEID(ctx, "A.1"))
	k, _ = l.start()
	l.want(k, []string{}, "NET1=lo")
	l.must(k.FlushPNET(ctx), k.SetHSLimitation(ctx, false))
	if names := l.files(); len(names) != 0 {
		t.Errorf("files without a change: %q", names)
	}

	// With a configuration file, commands add to its settings and remove some of them.
	l.configure("ueids: [FILE.1, FILE.2]\n")
	k, _ = l.start()
	l.must(k.RemoveUEID(ctx, "FILE.1"), k.AddUEID(ctx, "HAND"))
	k, _ = l.start()
	l.want(k, []string{"FILE.2", "HAND"})
	// After the file was edited, only its settings apply.
	l.configure("ueids: [FILE.3]\n")
	k, c := l.start()
	l.want(k, []string{"FILE.3"})
	if names := l.files(); len(names) != 0 {
		t.Errorf("files after an edit: %q", names)
	}
	// The same holds when a running stack reads the file again.
	l.must(k.AddUEID(ctx, "HAND"), c.reload(ctx))
	l.want(k, []string{"FILE.3"})
	k, _ = l.start()
	l.want(k, []string{"FILE.3"})
	// An invalid file changes nothing, and the changes of commands are kept.
	l.must(k.AddUEID(ctx, "HAND"))
	l.configure("bogus\n")
	if err := c.reload(ctx); err == nil {
		t.Error("no error of a nonsensical file")
	}
	l.configure("ueids: [FILE.3]\n")
	k, _ = l.start()
	l.want(k, []string{"FILE.3", "HAND"})
}

// TestStateBroken checks that a stack starts with any state file.
func TestStateBroken(t *testing.T) {
	l, ctx := newLab(t), t.Context()
	l.configure("ueids: [FILE]\n")
	k, _ := l.start()
	l.must(k.AddUEID(ctx, "HAND"), k.Attach(ctx, both("/hand", 1000)))
	path := k.file.path
	whole, err := os.ReadFile(path)
	l.must(err)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	l.must(os.WriteFile(elsewhere, whole, 0o644))
	for name, breakIt := range map[string]func() error{
		"cut":        func() error { return os.WriteFile(path, whole[:len(whole)/2], 0o644) },
		"empty":      func() error { return os.WriteFile(path, nil, 0o644) },
		"garbage":    func() error { return os.WriteFile(path, []byte("\x00\xff{["), 0o644) },
		"large":      func() error { return os.WriteFile(path, []byte(strings.Repeat("# x\n", config.MaxSize/4+1)), 0o644) },
		"symlink":    func() error { return os.Symlink(elsewhere, path) },
		"directory":  func() error { return os.Mkdir(path, 0o755) },
		"named pipe": func() error { return unix.Mkfifo(path, 0o644) },
		"writable":   func() error { return os.WriteFile(path, whole, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			l := &lab{t: t, dir: l.dir, conf: l.conf}
			l.must(os.RemoveAll(path), os.RemoveAll(path+".broken"), breakIt())
			if name == "writable" {
				l.must(os.Chmod(path, 0o666))
			}
			k, _ := l.start()
			l.want(k, []string{"FILE"})
			l.wantAttached(k)
			if _, err := os.Lstat(path + ".broken"); err != nil || !strings.Contains(l.log.String(), "cannot restore") {
				t.Errorf("kept aside: %v; log:\n%s", err, l.log.String())
			}
			// The next change is written to a new state file.
			l.must(k.AddUEID(t.Context(), "NEXT"))
			k, _ = l.start()
			l.want(k, []string{"FILE", "NEXT"})
		})
	}
	if b, err := os.ReadFile(elsewhere); err != nil || string(b) != string(whole) {
		t.Errorf("what the symbolic link led to: %v\n%s", err, b)
	}
}

// TestStateNowhere checks that changes take effect even if the state file cannot be
// written, and that SysInfo reports the error.
func TestStateNowhere(t *testing.T) {
	other := func(dir string) error { return os.Chmod(dir, 0o777) }
	for name, damage := range map[string]func(dir string) error{
		"everybody's": other,
		"a file": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "smcr"), nil, 0o644)
		},
		"a link to elsewhere": func(dir string) error { return os.Symlink("/tmp", filepath.Join(dir, "smcr")) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.configure("ueids: [FILE]\n")
			l.must(damage(l.dir))
			if name != "everybody's" {
				l.dir = filepath.Join(l.dir, "smcr")
			}
			k, _ := l.start()
			l.must(k.AddUEID(t.Context(), "HAND"))
			info, err := k.SysInfo(t.Context())
			if err != nil || info.StateFile != "" || info.StateError == "" {
				t.Errorf("%+v, %v", info, err)
			}
			l.want(k, []string{"FILE", "HAND"})
			k, _ = l.start()
			l.want(k, []string{"FILE"})
		})
	}
	// A directory that becomes unusable is reported. When it can be used again, it is.
	l := newLab(t)
	l.configure("ueids: [FILE]\n")
	k, _ := l.start()
	l.must(os.Chmod(l.dir, 0o777), k.AddUEID(t.Context(), "A"))
	if info, _ := k.SysInfo(t.Context()); info.StateFile != "" || !strings.Contains(info.StateError, "writable for other users") {
		t.Errorf("%+v", info)
	}
	l.must(os.Chmod(l.dir, 0o755), k.AddUEID(t.Context(), "B"))
	k, _ = l.start()
	l.want(k, []string{"FILE", "A", "B"})
}

// TestStateRefused checks that a change that the stack refuses does not change the state
// file.
func TestStateRefused(t *testing.T) {
	l := newLab(t)
	l.configure("ueids: [FILE]\n")
	k, _ := l.start()
	if err := k.AddUEID(t.Context(), "FILE"); err == nil {
		t.Error("no error")
	}
	if err := k.RemovePNET(t.Context(), "NOSUCH"); err == nil {
		t.Error("no error")
	}
	if names := l.files(); len(names) != 0 {
		t.Errorf("files: %q", names)
	}
}

// TestStaleStates checks that only the state files of network namespaces that do not
// exist any more are removed.
func TestStaleStates(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil || st.Ino != initialPIDs {
		t.Skip("needs all processes of the machine in sight")
	}
	l := newLab(t)
	put := func(name string, ino uint64) {
		s := config.State{Namespace: ino, Base: &config.Config{}, Now: &config.Config{UEIDs: []string{"A"}}}
		b, err := s.AppendYAML(nil)
		l.must(err, os.WriteFile(filepath.Join(l.dir, name), b, 0o644))
	}
	l.must(unix.Stat("/proc/self/ns/net", &st))
	put("state-90000001.yaml", st.Ino)
	put("state-90000002.yaml", 12345)
	put("state-90000003.txt", 12345)
	l.must(os.WriteFile(filepath.Join(l.dir, "state-90000004.yaml"), []byte("?"), 0o644))
	l.start()
	if got, want := l.files(), []string{"state-90000001.yaml", "state-90000003.txt", "state-90000004.yaml"}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}

// TestOnDemandState checks that changes survive the end of real stacks that are started
// on demand, and that each network namespace has its own state file.
func TestOnDemandState(t *testing.T) {
	if _, err := os.Stat(config.DefaultPath); err == nil {
		t.Skip(config.DefaultPath + " is there: needs a machine without")
	}
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
		runtime.Goexit()
	}
	session := func(do func(ctx context.Context, c *nl.Client) error) {
		if err := StartOnDemand(t.Context(), "--threads", "1"); err != nil {
			fail("%v", err)
		}
		pid := servicePID(t)
		c, err := nl.DialUser(t.Context())
		if err != nil {
			fail("%v", err)
		}
		defer c.Close()
		if err := do(t.Context(), c); err != nil {
			fail("%v", err)
		}
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			fail("%v", err)
		}
		wantEnd(t, pid)
	}
	inNamespace(t, func(t *testing.T, _ string) {
		f, err := newStateFile(logDir, logDir)
		if err != nil {
			fail("%v", err)
		}
		defer f.remove()
		session(func(ctx context.Context, c *nl.Client) error { return c.AddUEID(ctx, "KEPT") })
		if st, err := os.Lstat(f.path); err != nil || st.Mode().Perm() != 0o644 {
			fail("%v, %v", st, err)
		}
		session(func(ctx context.Context, c *nl.Client) error {
			eids, err := c.UEIDs(ctx)
			if err == nil && !slices.Equal(eids, []string{userstack.DefaultUEID, "KEPT"}) {
				err = fmt.Errorf("enterprise IDs of the second stack: %q", eids)
			}
			info, ierr := c.SysInfo(ctx)
			if ierr != nil || info.StateFile != f.path || !info.RoCEv1 || !info.RoCEv2 {
				err = fmt.Errorf("%+v, %w", info, ierr)
			}
			return err
		})
	})
	inNamespace(t, func(t *testing.T, _ string) {
		session(func(ctx context.Context, c *nl.Client) error {
			eids, err := c.UEIDs(ctx)
			if err == nil && !slices.Equal(eids, []string{userstack.DefaultUEID}) {
				err = fmt.Errorf("enterprise IDs of another network namespace: %q", eids)
			}
			return err
		})
	})
}
