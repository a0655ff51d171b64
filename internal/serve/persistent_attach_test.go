// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/config"
	"smcr/nl"
	"smcr/nl/nltest"
)

// both is an attachment for both sides.
func both(path string, uid uint32) nl.Attachment {
	return nl.Attachment{Path: path, UID: uid, Connect: true, Accept: true}
}

// wantAttached checks what is attached, and by whom.
func (l *lab) wantAttached(k *persistentControl, want ...nl.Attachment) {
	l.t.Helper()
	got, err := k.Attachments(l.t.Context())
	l.must(err)
	lines := func(all []nl.Attachment) (s []string) {
		for _, a := range all {
			s = append(s, fmt.Sprintf("%s uid %d connect %t accept %t always %t run %t", a.Path, a.UID, a.Connect, a.Accept, a.Always, a.Run))
		}
		slices.Sort(s)
		return s
	}
	if !slices.Equal(lines(got), lines(want)) {
		l.t.Errorf("attached:\n%s\nwant:\n%s\nlog:\n%s", strings.Join(lines(got), "\n"), strings.Join(lines(want), "\n"), l.log.String())
	}
}

// TestAttachedLasts: what commands attach and detach outlasts the stack, with who has asked for it. Runs do not.
func TestAttachedLasts(t *testing.T) {
	l, ctx := newLab(t), t.Context()
	l.configure("ueids: [FILE]\nprograms: [{cgroup: /file/1}, {cgroup: /file/2}]\n")
	me := uint32(os.Geteuid())
	k, _ := l.start()
	l.wantAttached(k, both("/file/1", me), both("/file/2", me))
	if names := l.files(); len(names) != 0 {
		t.Errorf("files before there is a change: %q", names)
	}
	run, err := k.Enter(ctx, nl.Peer{UID: 7, PID: 9}, false)
	l.must(err)
	if names := l.files(); len(names) != 0 {
		t.Errorf("files of runs: %q", names)
	}
	accepts := nl.Attachment{Path: "/file/2", UID: 1001, Accept: true, Always: true}
	l.must(k.Attach(ctx, both("/hand/\xff\n", 1000)), k.Attach(ctx, both("/hand/2", 0)), k.Detach(ctx, "/file/1"), k.Attach(ctx, accepts))
	l.wantAttached(k, both("/hand/\xff\n", 1000), both("/hand/2", 0), accepts, run)
	// Killed, and not told to end: there is no other way to end this one.
	k, _ = l.start()
	l.wantAttached(k, both("/hand/\xff\n", 1000), both("/hand/2", 0), accepts)
	k, _ = l.start()
	l.must(k.Detach(ctx, "/hand/\xff\n"), k.AddUEID(ctx, "HAND"))
	if err := k.Detach(ctx, "/hand/\xff\n"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	k, _ = l.start()
	l.wantAttached(k, both("/hand/2", 0), accepts)
	l.want(k, []string{"FILE", "HAND"})
	// Without a change left, there is no state file.
	l.must(k.Detach(ctx, "/hand/2"), k.Attach(ctx, both("/file/1", 0)), k.Attach(ctx, both("/file/2", 0)), k.RemoveUEID(ctx, "HAND"))
	if names := l.files(); len(names) != 0 {
		t.Errorf("files without a change: %q", names)
	}
}

// TestAttachedAndFile: at a reload and at a start with another file, what the file lists is as it says, what it listed is
// detached, and what commands have attached beside it stays.
func TestAttachedAndFile(t *testing.T) {
	me := uint32(os.Geteuid())
	for name, again := range map[string]func(*lab, *persistentControl, *configurator) *persistentControl{
		"reload": func(l *lab, k *persistentControl, c *configurator) *persistentControl {
			l.must(c.reload(l.t.Context()))
			return k
		},
		"start": func(l *lab, _ *persistentControl, _ *configurator) *persistentControl {
			k, _ := l.start()
			return k
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, ctx := newLab(t), t.Context()
			l.configure("programs: [{cgroup: /stays}, {cgroup: /gone}, {cgroup: /changed}, {cgroup: /detached}]")
			k, c := l.start()
			l.must(k.AddUEID(ctx, "HAND"), k.Attach(ctx, both("/hand", 1000)), k.Attach(ctx, both("/gets-listed", 1000)), k.Detach(ctx, "/detached"),
				k.Attach(ctx, nl.Attachment{Path: "/changed", Connect: true}), k.Attach(ctx, nl.Attachment{Path: "/gone", Connect: true}))
			l.configure("ueids: [FILE]\nprograms: [{cgroup: /stays}, {cgroup: /changed}, {cgroup: /detached}, {cgroup: /gets-listed, connect: false}, {cgroup: /new}]")
			k = again(l, k, c)
			listed := nl.Attachment{Path: "/gets-listed", UID: me, Accept: true}
			want := []nl.Attachment{both("/stays", me), both("/changed", me), both("/detached", me), listed, both("/new", me), both("/hand", 1000)}
			l.wantAttached(k, want...)
			l.want(k, []string{"FILE"})
			if log := l.log.String(); name == "start" && !strings.Contains(log, "dropped, but for the cgroups that they have attached") {
				t.Errorf("log:\n%s", log)
			}
			// So it is for the next stack, and without a file.
			k, c = l.start()
			l.wantAttached(k, want...)
			l.want(k, []string{"FILE"})
			l.configure("ueids: [OTHER]")
			k = again(l, k, c)
			l.wantAttached(k, both("/hand", 1000))
			l.want(k, []string{"OTHER"})
			// A file that is refused changes nothing, and what a command detaches is detached.
			l.configure("ueids: [OTHER]\nprograms: [{cgroup: /a}, {cgroup: b}]")
			if err := c.reload(ctx); err == nil {
				t.Error("no error of an invalid file")
			}
			l.configure("ueids: [OTHER]")
			k, c = l.start()
			l.wantAttached(k, both("/hand", 1000))
			l.must(k.Detach(ctx, "/hand"))
			k = again(l, k, c)
			l.wantAttached(k)
			if names := l.files(); len(names) != 0 {
				t.Errorf("files: %q", names)
			}
		})
	}
}

// TestAttachedAndEdited: what 'smcr service' attaches and writes into a file of the configuration, or the reverse, leaves the other changes
// by commands as they are, with and without a file before.
func TestAttachedAndEdited(t *testing.T) {
	for _, text := range []string{"", "# mine\nueids: [FILE]\nprograms:\n  - cgroup: /file # one\n"} {
		for _, dropIn := range []bool{true, false} { // false: what an earlier release does, or a person
			l, ctx := newLab(t), t.Context()
			me := uint32(os.Geteuid())
			want := []nl.Attachment{both("/hand", 1000)}
			ueids := []string{"HAND"}
			if text != "" {
				l.configure(text)
				want, ueids = append(want, both("/file", me)), []string{"FILE", "HAND"}
			}
			k, _ := l.start()
			l.must(k.AddUEID(ctx, "HAND"), k.Attach(ctx, both("/hand", 1000)), k.Attach(ctx, both("/service", 0)))
			before := text
			if dropIn {
				before = "# a drop-in file\n"
			}
			with, err := config.AddProgram([]byte(before), "/service")
			l.must(err)
			if dropIn {
				l.dropIn(string(with))
			} else {
				l.configure(string(with))
			}
			for range 2 {
				k, _ = l.start()
				l.wantAttached(k, append(slices.Clone(want), both("/service", me))...)
				l.want(k, ueids)
			}
			l.must(k.Detach(ctx, "/service"))
			if dropIn {
				l.dropIn("")
			} else {
				l.configure(text)
			}
			for range 2 {
				k, _ = l.start()
				l.wantAttached(k, want...)
				l.want(k, ueids)
			}
		}
	}
}

// TestDropIns: what a drop-in file says counts together with the configuration file, when the stack starts, and when it reads them again.
// One that says more than programs is another configuration. One with an error changes nothing.
func TestDropIns(t *testing.T) {
	l, ctx := newLab(t), t.Context()
	l.configure("ueids: [FILE]\nhandshake_limitation: true\n")
	l.dropIn("programs: [{cgroup: /x}]\n")
	k, c := l.start()
	wantFiles := func(want ...string) {
		t.Helper()
		info, err := k.SysInfo(ctx)
		if err != nil || !slices.Equal(info.ConfigFiles, want) {
			t.Errorf("%v, %q, want %q", err, info.ConfigFiles, want)
		}
	}
	dropIn := filepath.Join(config.DropIns(l.conf), "50-x.yaml")
	wantFiles(l.conf, dropIn)
	x := both("/x", uint32(os.Geteuid()))
	l.wantAttached(k, x)
	l.must(k.AddUEID(ctx, "HAND"))
	for _, bad := range []string{"nothing: 1\n", "ueids: [A]\nprograms: [{cgroup: /y}, {cgroup: x}]\n", "programs: [", "ueids: [A, B, C, D]\n"} {
		l.dropIn(bad)
		if err := c.reload(ctx); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), dropIn+": line ") {
			t.Errorf("%q: %v", bad, err)
		}
		l.want(k, []string{"FILE", "HAND"})
		l.wantAttached(k, x)
		wantFiles(l.conf, dropIn)
	}
	l.dropIn("ueids: [DROP]\nprograms: [{cgroup: /x}]\nhandshake_limitation: false\n")
	k, c = l.start()
	l.want(k, []string{"FILE", "DROP"})
	l.wantAttached(k, x)
	if on, err := k.HSLimitation(ctx); err != nil || on {
		t.Errorf("the last file says false: %v, %v", on, err)
	}
	if !strings.Contains(l.log.String(), "all changes by commands are dropped") {
		t.Errorf("log:\n%s", l.log.String())
	}
	l.dropIn("")
	l.must(c.reload(ctx))
	l.want(k, []string{"FILE"})
	wantFiles(l.conf)
}

// dropIn writes the drop-in file, or removes it if text is "".
func (l *lab) dropIn(text string) {
	l.t.Helper()
	file := filepath.Join(config.DropIns(l.conf), "50-x.yaml")
	if text == "" {
		l.must(os.Remove(file))
		return
	}
	l.must(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
}

// TestAttachedElsewhere: a stack that takes no connections of cgroups starts with a file and a state that have some, and
// the log says why they do nothing. The next stack that does has them.
func TestAttachedElsewhere(t *testing.T) {
	l, ctx := newLab(t), t.Context()
	l.configure("ueids: [FILE]\nprograms: [{cgroup: /file}]\n")
	k, _ := l.start()
	l.must(k.AddUEID(ctx, "HAND"), k.Attach(ctx, both("/hand", 1000)))
	l.wrap = func(f *nltest.Fake) nl.Control { return struct{ nl.Control }{f} } // no nl.Attacher
	other := l.wrap
	k, c := l.start()
	l.want(k, []string{"FILE", "HAND"})
	if n := strings.Count(l.log.String(), "'smcr serve' does"); n != 2 { // the file, and the state
		t.Errorf("%d times in the log:\n%s", n, l.log.String())
	}
	if _, err := k.Attachments(ctx); !errors.Is(err, nl.ErrNotSupported) {
		t.Error(err)
	}
	if _, err := k.Enter(ctx, nl.Peer{PID: 1}, false); !errors.Is(err, nl.ErrNotSupported) {
		t.Error(err)
	}
	for _, err := range []error{k.Attach(ctx, both("/x", 0)), k.Detach(ctx, "/hand")} {
		if !errors.Is(err, nl.ErrNotSupported) {
			t.Error(err)
		}
	}
	l.wrap = nil
	k, _ = l.start()
	l.wantAttached(k, both("/file", uint32(os.Geteuid())), both("/hand", 1000))
	l.wrap = other
	l.must(c.reload(ctx))
	l.configure("ueids: [OTHER]\nprograms: [{cgroup: /file}]\n")
	k, _ = l.start()
	l.want(k, []string{"OTHER"})
}

// A refusing stack has no room for a second program.
type refusing struct{ *nltest.Fake }

func (r refusing) Attach(ctx context.Context, a nl.Attachment) error {
	if all, err := r.Attachments(ctx); err != nil || len(all) > 0 {
		return syscall.ENOSPC
	}
	return r.Fake.Attach(ctx, a)
}

// TestAttachedRefused: if the stack refuses one of the programs of a state, it has none of its changes, and the state is kept aside.
func TestAttachedRefused(t *testing.T) {
	l, ctx := newLab(t), t.Context()
	l.configure("ueids: [FILE]\n")
	k, _ := l.start()
	l.must(k.AddUEID(ctx, "HAND"), k.Attach(ctx, both("/hand/1", 0)), k.Attach(ctx, both("/hand/2", 0)))
	l.wrap = func(f *nltest.Fake) nl.Control { return refusing{f} }
	k, _ = l.start()
	l.want(k, []string{"FILE"})
	l.wantAttached(k)
	if _, err := os.Stat(k.file.path + ".broken"); err != nil || !strings.Contains(l.log.String(), "attach cgroup /hand/2: ") {
		t.Errorf("%v, log:\n%s", err, l.log.String())
	}
}
