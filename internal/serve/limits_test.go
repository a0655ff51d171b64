// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/cmdutil"
)

func TestRaiseOpenFiles(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	low := was
	low.Cur = was.Max / 2
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := raiseOpenFiles(); err != nil {
			t.Fatal(err)
		}
		var is unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &is); err != nil || is.Cur != was.Max || is.Max != was.Max {
			t.Errorf("%+v, %v; want %d", is, err, was.Max)
		}
	}
}

func TestLimitFlags(t *testing.T) {
	for _, tt := range []struct {
		args          []string
		ok            bool
		fds, sessions int
	}{
		{nil, true, 0, 256},
		{[]string{"--user-fds", "100", "--user-sessions", "3"}, true, 100, 3},
		{[]string{"--user-fds", "-1"}, false, 0, 0},
		{[]string{"--user-sessions", "0"}, false, 0, 0},
	} {
		var got *Options
		cmd := newCmd(&cmdutil.Factory{IO: cmdutil.SystemStreams()}, func(o *Options) error { got = o; return nil })
		cmd.SetArgs(tt.args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		if (err == nil) != tt.ok || tt.ok && (got == nil || got.UserFDs != tt.fds || got.UserRuns != tt.sessions) {
			t.Errorf("%q: %v, %+v", tt.args, err, got)
		}
	}
}
