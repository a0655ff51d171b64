// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/nl"
	"smcr/userstack/internal/takeover"
)

// A buffer is a log that several goroutines write.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// wantWorks checks that a stack serves commands at the place of this namespace,
// and that the directory of its sockets is as before.
func wantWorks(t *testing.T, when string, s *Service, before []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	c, err := nl.DialUser(ctx)
	if err != nil {
		t.Errorf("%s: %v", when, err)
		return
	}
	defer c.Close()
	for _, change := range []func(context.Context, string) error{c.AddUEID, c.RemoveUEID} {
		if err := change(ctx, "SMCV2-TAKEOVER"); err != nil {
			t.Errorf("%s: a change by a command: %v", when, err)
		}
	}
	if now := namesIn(t, s.Dir()); before != nil && !slices.Equal(now, before) {
		t.Errorf("%s: in the place of the stack: %q, want %q", when, now, before)
	}
}

// namesIn lists a folder, but for the file that is being written at the moment.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestSuccessorDies has a process that takes over die before each step. The stack continues
// as before, and hands over to the next process, which the changes by commands have reached.
func TestSuccessorDies(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		cfg := Config{Release: "old"}
		s, err := New(cfg)
		if err != nil {
			t.Error(err)
			return
		}
		var frozen, committed []string
		s.OnHandOver(func() func(bool) {
			frozen = append(frozen, "frozen")
			return func(over bool) { frozen = append(frozen, fmt.Sprint(over)) }
		}, func(pid int) { committed = append(committed, fmt.Sprint(pid == os.Getpid())) })
		wait := running(t, s)
		before := namesIn(t, s.Dir())
		// die ends what a process that dies has open.
		for step, take := range []func() (die func() error){
			func() func() error { // before Hello
				c, err := place.Dial(t.Context(), place.Takeover)
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				return c.Close
			},
			func() func() error { // after Offer
				p, err := Approach(t.Context(), "new")
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				return p.Close
			},
			func() func() error { // after it has opened its sockets
				p, err := Approach(t.Context(), "new")
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				next := cfg
				next.Predecessor = p
				n, err := New(next)
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				return func() error { return running(t, n)(true) }
			},
			func() func() error { // after Frozen
				p, err := Approach(t.Context(), "new")
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				next := cfg
				next.Predecessor = p
				n, err := New(next)
				if err == nil {
					err = n.Freeze()
				}
				if err != nil {
					t.Error(err)
					runtime.Goexit()
				}
				return func() error { return running(t, n)(true) }
			},
		} {
			if err := take()(); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
			wantWorks(t, fmt.Sprintf("step %d", step), s, before)
		}

		p, err := Approach(t.Context(), "new")
		if err != nil {
			t.Error(err)
			return
		}
		next := cfg
		next.Predecessor = p
		n, err := New(next)
		if err == nil {
			err = errors.Join(n.Freeze(), n.Assume())
		}
		if err != nil {
			t.Error(err)
			return
		}
		waitNext := running(t, n)
		wantWorks(t, "the next stack", n, nil)
		if err := wait(false); err != nil {
			t.Errorf("the old stack: %v", err)
		}
		if want := []string{"frozen", "false", "frozen", "true"}; !slices.Equal(frozen, want) || !slices.Equal(committed, []string{"true"}) {
			t.Errorf("the hooks were called: %q, %q, want %q", frozen, committed, want)
		}
		if names := nl.Ending(); len(names) != 0 {
			t.Errorf("ending: %q", names)
		}
		if err := waitNext(true); err != nil {
			t.Errorf("the next stack: %v", err)
		}
	})
}

// TestPredecessorDies has the stack that is to hand over die before each step. The new process
// finds that out, and can start as after any other end of a stack.
func TestPredecessorDies(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		cfg := Config{}
		for step, reached := range []takeover.Type{takeover.Hello, takeover.Ready, takeover.Commit} {
			claim, err := place.Take()
			if err != nil {
				t.Error(err)
				return
			}
			l, err := claim.Listen(place.Takeover)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := claim.Part(); err != nil {
				t.Error(err)
			}
			died := make(chan struct{})
			go func() {
				defer close(died)
				defer claim.Close()
				u, err := l.AcceptUnix()
				if err != nil {
					t.Error(err)
					return
				}
				old := takeover.New(u, true)
				defer old.Close()
				for m, err := old.Receive(testTime); ; m, err = old.Receive(testTime) {
					switch {
					case err != nil:
						t.Errorf("the new process ends before %v: %v", reached, err)
						return
					case m.Type == reached:
						return
					case m.Type == takeover.Hello:
						lock, err := claim.Lock()
						if err != nil {
							t.Error(err)
							return
						}
						_ = old.Send(takeover.Message{Type: takeover.Offer, Files: []*os.File{lock}})
						_ = lock.Close()
					case m.Type == takeover.Ready:
						_ = old.Send(takeover.Message{Type: takeover.Frozen})
					}
				}
			}()
			next := cfg
			var n *Service
			next.Predecessor, err = Approach(t.Context(), "new")
			if err == nil {
				n, err = New(next)
			}
			if err == nil {
				err = n.Freeze()
			}
			if err == nil {
				err = n.Assume()
			}
			if !errors.Is(err, ErrPredecessorEnded) {
				t.Errorf("step %d: %v", step, err)
			}
			<-died
			if n != nil {
				if err := running(t, n)(true); err != nil {
					t.Errorf("step %d: %v", step, err)
				}
			}
			s, err := New(cfg)
			if err != nil {
				t.Errorf("step %d: a start without a stack: %v", step, err)
				return
			}
			wait := running(t, s)
			wantWorks(t, fmt.Sprintf("step %d", step), s, nil)
			if err := wait(true); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
			// A stack of another test may have removed the place, which nobody has now: the namespace
			// is that of a thread, and the others do not find it.
			left, err := os.ReadDir(s.Dir())
			if err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 1 || len(left) == 1 && left[0].Name() != "lock" {
				t.Errorf("step %d: left: %v, %v", step, left, err)
			}
		}
	})
}

// TestTakeoverForeign checks that only root and the user of a stack can take over from it: the
// mode of the socket keeps other users out, and so does the stack if the mode is wrong.
func TestTakeoverForeign(t *testing.T) {
	checkLeaks(t)
	inNamespace(t, func(t *testing.T) {
		const foreign = 65532
		log := &buffer{}
		s, err := New(Config{Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Error(err)
			return
		}
		wait := running(t, s)
		before := namesIn(t, s.Dir())
		path := filepath.Join(s.Dir(), place.Takeover)
		ask := func() (err error) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // and never unlocked: the thread ends here
				for _, nr := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
					if _, _, e := unix.RawSyscall(nr, foreign, foreign, foreign); e != 0 {
						t.Errorf("become user %d: %v", foreign, e)
						return
					}
				}
				u, derr := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
				if err = derr; err != nil {
					return
				}
				c := takeover.New(u, false)
				defer c.Close()
				if err = c.Send(takeover.Message{Type: takeover.Hello, Release: "foreign"}); err == nil {
					_, err = c.Receive(testTime)
				}
			}()
			<-done
			return err
		}
		if err := ask(); !errors.Is(err, unix.EACCES) {
			t.Errorf("a foreign user connects: %v", err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Error(err)
		}
		if err := ask(); !errors.Is(err, io.EOF) && !errors.Is(err, unix.EPIPE) {
			t.Errorf("a foreign user who can connect gets an answer: %v", err)
		}
		if text := log.String(); !strings.Contains(text, "takeover refused") || !strings.Contains(text, fmt.Sprint("user ", foreign)) || strings.Contains(text, "asks to take over") {
			t.Errorf("the log:\n%s", text)
		}
		wantWorks(t, "afterwards", s, before)
		if err := wait(true); err != nil {
			t.Error(err)
		}
	})
}
