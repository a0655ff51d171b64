// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"smcr/internal/plain"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// firstOf returns the first message of a process of another release: only what is the same
// in all versions is as in this one.
func firstOf(typ Type, version uint32, errno unix.Errno, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xee
	}
	b[0] = byte(typ)
	binary.LittleEndian.PutUint32(b[16:], uint32(errno))
	binary.LittleEndian.PutUint32(b[28:], version)
	return b
}

// others are versions and lengths of messages of other releases.
var others = map[string]struct {
	version uint32
	length  int
}{
	"older":             {Version - 1, minMessage},
	"newer":             {Version + 1, minMessage},
	"newer, short":      {Version + 7, headerLen},
	"newer, very long":  {0xffffffff, 3 * MaxMessage},
	"before the first ": {0, minMessage + 3},
}

// TestVersionOfLauncher has launchers of other releases ask for a session. The stack refuses
// with its version and in words, and its log has the same words.
func TestVersionOfLauncher(t *testing.T) {
	testkind.System(t)
	for name, o := range others {
		t.Run(name, func(t *testing.T) {
			logged := make(chan string, 1)
			path := serve(t, &Server{Handler: &handler{}, Log: slog.New(logTo(logged)), Opened: func(*Launcher) { t.Error("a session was opened") }})
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(firstOf(TypeHello, o.version, 0, o.length)); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			b := make([]byte, MaxMessage)
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			// A launcher of any version can read these.
			le := binary.LittleEndian
			if n < headerLen || b[0] != byte(TypeWelcome) || unix.Errno(le.Uint32(b[16:])) != unix.EPROTO || le.Uint32(b[28:]) != Version {
				t.Fatalf("%x", b[:n])
			}
			m, err := ParseMessage(b[:n])
			want := "use the release of the stack"
			if o.version > Version {
				want = "restart the stack"
			}
			if err != nil || !strings.Contains(m.Text, "different releases") || !strings.Contains(m.Text, want) {
				t.Errorf("%q, %v", m.Text, err)
			}
			if line := <-logged; !strings.Contains(line, "different releases") {
				t.Errorf("log: %s", line)
			}
		})
	}
}

// logTo is a handler that sends each line to a channel.
func logTo(lines chan string) slog.Handler {
	return slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		select {
		case lines <- string(b):
		default:
		}
		return len(b), nil
	}), nil)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestVersionOfStack has stacks of other releases answer a launcher: with a refusal, and as
// if there were no difference.
func TestVersionOfStack(t *testing.T) {
	testkind.System(t)
	for name, o := range others {
		for _, errno := range []unix.Errno{0, unix.EPROTO} {
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "s")
				l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					c, err := l.AcceptUnix()
					if err != nil {
						return
					}
					defer c.Close()
					_, _ = c.Read(make([]byte, MaxMessage))
					_, _ = c.Write(firstOf(TypeWelcome, o.version, errno, o.length))
					_, _ = c.Read(make([]byte, 1)) // until the launcher gives up
				}()
				_, err = dialPath(t, path)
				var version *VersionError
				if !errors.As(err, &version) || version.Stack != o.version || version.Launcher != Version || !errors.Is(err, unix.EPROTO) {
					t.Fatalf("%v", err)
				}
				want := "restart the stack"
				if o.version > Version {
					want = "use the release of the stack"
				}
				if text := plain.Text(err.Error()); !strings.HasPrefix(text, "'smcr run' and the stack") || !strings.Contains(text, want) {
					t.Errorf("%s", text)
				}
			})
		}
	}
}

// TestFirstMessage checks that the first messages have the version where each version has it.
func TestFirstMessage(t *testing.T) {
	for _, m := range []Message{{Type: TypeHello, Size: Version, Text: "x"}, {Type: TypeWelcome, Size: Version, Errno: 71, Flags: FlagByOption}} {
		b := mustEncode(t, m)
		if _, ok := otherVersion(b); ok {
			t.Errorf("%v is of another version", m.Type)
		}
		binary.LittleEndian.PutUint32(b[28:], Version+1)
		got, ok := otherVersion(b)
		if want := (Message{Type: m.Type, Size: Version + 1, Errno: m.Errno}); !ok || got.Type != want.Type || got.Size != want.Size || got.Errno != want.Errno {
			t.Errorf("%+v, %v", got, ok)
		}
	}
	if _, ok := otherVersion(mustEncode(t, Message{Type: TypeResult, Size: 9})); ok {
		t.Error("a later message")
	}
}
