// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
)

// template makes a template. systemctl knows only its instances.
func (b *bed) template(name, slice string, props ...string) {
	b.t.Helper()
	b.write(name+".show", strings.Join(append(props, "Id="+name, "LoadState=loaded", "Slice="+slice, "ActiveState=inactive\n"), "\n"))
	b.write(name+".cat", "# /lib/systemd/system/"+name+"\n[Service]\nExecStart=/usr/sbin/a %i\n")
}

// TestEnableTemplate: a template stands for its slice, where that has nothing else.
func TestEnableTemplate(t *testing.T) {
	b := newBed(t)
	b.template("a@.service", "system-a.slice")
	b.template("b-c@.service", `system-b\x2dc.slice`)
	b.unit("b-c.socket", "Accept=yes")
	b.template("d@.socket", "system-d.slice")
	const (
		sliceA = "/system.slice/system-a.slice"
		sliceB = `/system.slice/system-b\x2dc.slice`
		sliceD = "/system.slice/system-d.slice"
		sockB  = "/system.slice/b-c.socket"
		head   = "programs:\n  - cgroup: "
		next   = "\n  - cgroup: "
	)
	b.must("enable", "a@")
	b.want(head+sliceA+"\n", sliceA)
	if !strings.Contains(b.errOut.String(), "new connections of a@.service use SMC-R") || !strings.Contains(b.errOut.String(), "a@.service does not run") {
		t.Errorf("%s", &b.errOut)
	}
	b.must("enable", "b-c@.service", "d@.socket")
	b.want(head+sliceA+next+sliceB+next+sockB+next+sliceD+"\n", sliceA, sliceB, sockB, sliceD)
	// An instance is one unit, and stays in what its template has enabled.
	b.must("enable", "a@x")
	b.want(head+sliceA+next+sliceB+next+sockB+next+sliceD+next+sliceA+"/a@x.service\n", sliceA, sliceB, sockB, sliceD, sliceA+"/a@x.service")
	b.must("disable", "a@x")
	if !strings.Contains(b.errOut.String(), "a@x.service goes on to use SMC-R: it is in system-a.slice") {
		t.Errorf("%s", &b.errOut)
	}
	if err := b.run("disable", "a@x"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "disable system-a.slice") {
		t.Error(err)
	}
	b.must("status", "a@y")
	if !strings.Contains(b.out.String(), "by system-a.slice") {
		t.Errorf("%s", &b.out)
	}
	// A template that is gone.
	if err := os.Remove(filepath.Join(b.dir, "b-c@.service.show")); err != nil {
		t.Fatal(err)
	}
	b.must("disable", "a@", "b-c@", "d@.socket")
	b.want("")
	b.template("a@.service", "system-a.slice")
	b.must("enable", "--restart", "a@")
	if calls, err := os.ReadFile(filepath.Join(b.dir, "calls")); string(calls) != "try-restart -- a@*.service\n" {
		t.Errorf("%q, %v", calls, err)
	}
}

// TestEnableTemplateRefuses: what a template does not have for itself is named, and nothing is changed.
func TestEnableTemplateRefuses(t *testing.T) {
	b := newBed(t)
	b.template("each@.service", "user-%i.slice")
	b.template("net@.service", "system-net.slice", "NetworkNamespacePath=/run/netns/%i")
	b.template("shared@.service", "workers.slice")
	b.template("dash-ed@.service", "system-dash-ed.slice") // system-dash.slice/system-dash-ed.slice
	for name, want := range map[string]struct {
		err  error
		says string
	}{
		"each@":         {ErrUnfit, "each instance of each@.service is in a slice or a network namespace of its own: name the instances, as in 'smcr service enable each@NAME'"},
		"net@":          {ErrUnfit, "network namespace of its own"},
		"shared@":       {ErrUnfit, "in workers.slice, where others may be, too"},
		"dash-ed@":      {ErrUnfit, "where others may be"},
		"none@":         {fs.ErrNotExist, "there is no unit none@.service"},
		"none@.service": {fs.ErrNotExist, "there is no unit none@.service"},
	} {
		if err := b.run("enable", name); !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v, want %q", name, err, want.says)
		}
	}
	b.want("")
}

// TestEnableSlice: a slice is a unit like others, whether or not it is there.
func TestEnableSlice(t *testing.T) {
	b := newBed(t)
	b.write("workers-x.slice.show", "Id=workers-x.slice\nLoadState=loaded\nSlice=workers.slice\nActiveState=inactive\n")
	b.unit("a.service", "ControlGroup=/workers.slice/workers-x.slice/a.service")
	const slice = "/workers.slice/workers-x.slice"
	b.must("enable", "workers-x.slice")
	b.want("programs:\n  - cgroup: "+slice+"\n", slice)
	b.stack = nltest.NewFake(nltest.State{Attachments: []nl.Attachment{{Path: "/", Cgroup: 1}, {Path: slice, Cgroup: 7, Outcomes: nl.Outcomes{SMCR: 5}}}})
	b.must("status", "a", "-o", "json")
	if out := b.out.String(); !strings.Contains(out, `"by": "workers-x.slice"`) || !strings.Contains(out, `"enabled": true`) || !strings.Contains(out, `"attached": true`) {
		t.Errorf("%s", out)
	}
	b.must("status")
	if out := b.out.String(); strings.Count(out, "\n") != 2 || !strings.Contains(out, "workers-x.slice") {
		t.Errorf("%s", out)
	}
	b.must("disable", "workers-x.slice")
	b.want("", "/")
	if !strings.Contains(b.errOut.String(), "it is in /, which is enabled") {
		t.Errorf("%s", &b.errOut)
	}
}

// TestCgroupOfTemplate: smcr attach --unit has the slice, too.
func TestCgroupOfTemplate(t *testing.T) {
	b := newBed(t)
	b.template("a@.service", "system-a.slice")
	b.template("shared@.service", "workers.slice")
	b.unit("b.service")
	for _, c := range []struct {
		unit, want string
		err        error
	}{
		{"a@", "/system.slice/system-a.slice", nil},
		{"a@.service", "/system.slice/system-a.slice", nil},
		{"a@x.service", "/system.slice/system-a.slice/a@x.service", nil},
		{"b.service", "/system.slice/b.service", nil},
		{"shared@", "", ErrUnfit},
		{"none@", "", ErrNotFound},
	} {
		if got, err := Cgroup(t.Context(), c.unit); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v, want %q, %v", c.unit, got, err, c.want, c.err)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		cgroup, top string
		want        bool
	}{
		{"/a/b", "/a", true}, {"/a", "/a", true}, {"/a", "/", true}, {"/", "/", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/", "/a", false},
	} {
		if got := within(c.cgroup, c.top); got != c.want {
			t.Errorf("%s in %s: %t", c.cgroup, c.top, got)
		}
	}
}
