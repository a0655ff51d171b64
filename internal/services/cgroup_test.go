// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"testing"
)

func TestCgroupOf(t *testing.T) {
	for _, test := range []struct {
		properties, want string
		err              error
	}{
		{"LoadState=loaded\nId=nginx.service\nSlice=system.slice\nControlGroup=/system.slice/nginx.service\n", "/system.slice/nginx.service", nil},
		{"ControlGroup=\nId=nginx.service\nSlice=system.slice\nLoadState=loaded\n", "/system.slice/nginx.service", nil},
		{"ControlGroup=\nId=a@b.service\nSlice=x-y-z.slice\nLoadState=loaded\n", "/x.slice/x-y.slice/x-y-z.slice/a@b.service", nil},
		{"ControlGroup=\nId=init.scope\nSlice=-.slice\nLoadState=loaded\n", "/init.scope", nil},
		{"ControlGroup=\nId=none.service\nSlice=\nLoadState=not-found\n", "", ErrNotFound},
		{"ControlGroup=\nId=x.device\nSlice=\nLoadState=loaded\n", "", ErrNoProgram},
		{"ControlGroup=/\nId=\nLoadState=loaded\n", "", ErrNotFound},
		{"", "", ErrNotFound},
	} {
		if got, err := cgroupOf("u", parseShow(test.properties)); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%q: %q, %v; want %q, %v", test.properties, got, err, test.want, test.err)
		}
	}
}

func TestCgroupWithoutSystemd(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if p, err := Cgroup(t.Context(), "nginx"); !errors.Is(err, ErrNoSystemd) {
		t.Errorf("%q, %v", p, err)
	}
}
