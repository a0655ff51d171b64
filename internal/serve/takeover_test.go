// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/sdnotify"
	"smcr/internal/testing/testkind"
	"smcr/userstack/service"
)

// TestAgain checks that a start is tried again only if the stack that was to hand over has
// ended, and not for ever.
func TestAgain(t *testing.T) {
	other := errors.New("another error")
	for _, tt := range []struct {
		name  string
		errs  []error
		calls int
		want  error
	}{
		{"starts", []error{nil}, 1, nil},
		{"another error", []error{other}, 1, other},
		{"ended once", []error{service.ErrPredecessorEnded, nil}, 2, nil},
		{"ends each time", []error{service.ErrPredecessorEnded, service.ErrPredecessorEnded, service.ErrPredecessorEnded, nil}, takeoverTries, service.ErrPredecessorEnded},
	} {
		calls := 0
		err := again(t.Context(), &Options{Err: &strings.Builder{}}, func(context.Context, *Options) error {
			calls++
			return tt.errs[calls-1]
		})
		if !errors.Is(err, tt.want) || calls != tt.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", tt.name, err, calls, tt.want, tt.calls)
		}
	}
}

// TestFreeze checks that changes wait while another process takes over, that questions do
// not, and that changes fail only if the other process is the stack then.
func TestFreeze(t *testing.T) {
	testkind.System(t)
	for _, over := range []bool{false, true} {
		l := newLab(t)
		k, _ := l.start()
		next := &successor{control: k, log: slog.New(slog.DiscardHandler)}
		thaw := next.freeze()
		changed := make(chan error, 1)
		go func() { changed <- k.AddUEID(t.Context(), "SMCV2-FREEZE") }()
		if _, err := k.SysInfo(t.Context()); err != nil {
			t.Error(err)
		}
		select {
		case err := <-changed:
			t.Errorf("a change does not wait: %v", err)
		case <-time.After(10 * time.Millisecond): // Real time: a change that does not wait has it.
		}
		next.commit(os.Getpid())
		thaw(over)
		if err := <-changed; over != errors.Is(err, syscall.EBUSY) || !over && err != nil {
			t.Errorf("taken over: %v, the change: %v", over, err)
		}
	}
}

// TestSuccessor checks what the service manager learns of a process that takes over, and who
// reports to it then.
func TestSuccessor(t *testing.T) {
	testkind.System(t)
	for _, tt := range []struct {
		name      string
		pid       int
		over      bool
		told      string // the first message
		goesOn    bool   // this process still reports
		inTheLogs string
	}{
		{"same unit", os.Getpid(), true, sdnotify.MainProcess(os.Getpid()), false, ""},
		{"same unit, dies", os.Getpid(), false, sdnotify.MainProcess(os.Getpid()), true, "has not taken over"},
		{"not of the unit", 1 << 30, true, sdnotify.Alive, true, "not of the same unit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "notify")
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			t.Setenv("NOTIFY_SOCKET", name)
			manager, err := sdnotify.New()
			if err != nil {
				t.Fatal(err)
			}
			l := newLab(t)
			k, _ := l.start()
			next := &successor{control: k, manager: manager, log: slog.New(slog.NewTextHandler(&l.log, nil))}
			thaw := next.freeze()
			next.commit(tt.pid)
			thaw(tt.over)
			if err := manager.Send(sdnotify.Alive); err != nil {
				t.Error(err)
			}
			const last = "the last message"
			end, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer end.Close()
			if _, err := end.Write([]byte(last)); err != nil {
				t.Fatal(err)
			}
			var got []string
			for b := make([]byte, 100); ; {
				n, err := c.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				if string(b[:n]) == last {
					break
				}
				got = append(got, string(b[:n]))
			}
			want := []string{tt.told}
			if tt.goesOn && tt.told != sdnotify.Alive {
				want = append(want, sdnotify.Alive)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("messages %q, want %q", got, want)
			}
			if !strings.Contains(l.log.String(), tt.inTheLogs) {
				t.Errorf("no %q in the log:\n%s", tt.inTheLogs, l.log.String())
			}
		})
	}
}

// TestDrainDefault: a stack that has handed over does not wait for its connections for ever, and
// the help says how long.
func TestDrainDefault(t *testing.T) {
	cmd := newCmd(&cmdutil.Factory{IO: cmdutil.SystemStreams()}, nil)
	f := cmd.Flags().Lookup("drain-timeout")
	if f == nil || f.DefValue != "24h0m0s" || f.Value.String() != f.DefValue {
		t.Errorf("--drain-timeout: %+v", f)
	}
	if !strings.Contains(cmd.Long, "a day by default") {
		t.Error("the help does not say how long")
	}
}
