// SPDX-License-Identifier: Apache-2.0

package sdnotify

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// manager listens as a service manager does.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSend(t *testing.T) {
	testkind.System(t)
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@smcr-sdnotify-" + strconv.Itoa(os.Getpid())} {
		c := manager(t, name)
		t.Setenv(socketEnv, name)
		n, err := New()
		if err != nil || n.Watchdog() != 0 {
			t.Fatalf("%v, %v", n.Watchdog(), err)
		}
		if v, ok := os.LookupEnv(socketEnv); ok {
			t.Errorf("%s is still %q", socketEnv, v)
		}
		b := make([]byte, 1000)
		for _, tt := range []struct {
			send []string
			want string
		}{
			{[]string{Ready, Status("serves\nall")}, "^READY=1\nSTATUS=serves all$"},
			{[]string{Reloading()}, `^RELOADING=1\nMONOTONIC_USEC=\d+$`},
			{[]string{Alive}, "^WATCHDOG=1$"},
			{[]string{Stopping}, "^STOPPING=1$"},
			{[]string{MainProcess(77)}, "^MAINPID=77$"},
		} {
			if err := n.Send(tt.send...); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(testkind.Patience))
			got, err := c.Read(b)
			if err != nil || !regexp.MustCompile(tt.want).Match(b[:got]) {
				t.Errorf("%q, %v", b[:got], err)
			}
		}
		_ = c.Close()
		if err := n.Send(Ready); err == nil {
			t.Error("nobody listens, and no error")
		}
		n.Leave()
		if err := n.Send(Ready); err != nil {
			t.Errorf("after Leave: %v", err)
		}
	}
}

// TestSuccessor checks that the environment of the next main process has the watchdog of the
// one before, and not that of this process.
func TestSuccessor(t *testing.T) {
	t.Setenv(pidEnv, "1")
	t.Setenv(intervalEnv, "5")
	for _, socket := range []string{"", "/s"} {
		t.Setenv(socketEnv, socket)
		env, ok := Successor([]string{"OTHER=1", intervalEnv + "=3000000", pidEnv + "=2"})
		if ok != (socket != "") {
			t.Errorf("socket %q: %v", socket, ok)
		}
		for name, want := range map[string][]string{
			socketEnv: {socket}, intervalEnv: {"3000000"}, pidEnv: nil, "OTHER": nil, "PATH": {os.Getenv("PATH")},
		} {
			var got []string
			for _, v := range env {
				if value, is := strings.CutPrefix(v, name+"="); is {
					got = append(got, value)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

// TestUnmanaged checks that a process beside the service knows nothing of it, and all else.
func TestUnmanaged(t *testing.T) {
	env := []string{"PATH=/bin", socketEnv + "=/s", "LISTEN_FDS=1", "WATCHDOG_USEC=5", "NOTIFY=1", "odd", "X=NOTIFY_SOCKET=", pidEnv + "="}
	before := slices.Clone(env)
	if got, want := Unmanaged(env), []string{"PATH=/bin", "NOTIFY=1", "odd", "X=NOTIFY_SOCKET="}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !slices.Equal(env, before) {
		t.Errorf("the environment itself is %q", env)
	}
}

func TestNew(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		socket, interval, pid string
		there                 bool
		watchdog              time.Duration
		ok                    bool
	}{
		{"", "", "", false, 0, true},
		{"", "1000000", "", false, 0, true},
		{"/s", "", "", true, 0, true},
		{"/s", "1500000", "", true, 1500 * time.Millisecond, true},
		{"/s", "1500000", own, true, 1500 * time.Millisecond, true},
		{"/s", "1500000", "1", true, 0, true}, // of another process
		{"/s", "0", own, true, 0, false},
		{"/s", "-5", "", true, 0, false},
		{"/s", "99999999999999999999", "", true, 0, false},
		{"/s", "x", "", true, 0, false},
		{"s", "", "", false, 0, false},
	} {
		t.Setenv(socketEnv, tt.socket)
		t.Setenv(intervalEnv, tt.interval)
		t.Setenv(pidEnv, tt.pid)
		n, err := New()
		if (n != nil) != tt.there || n.Watchdog() != tt.watchdog || (err == nil) != tt.ok {
			t.Errorf("%+v: %v, %v, %v", tt, n, n.Watchdog(), err)
		}
	}
	if err := (*Notifier)(nil).Send(Ready); err != nil {
		t.Error(err)
	}
}
