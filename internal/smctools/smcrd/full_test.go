// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/smctools/tool"
	"smcr/nl/nltest"
)

// onSmallDisk runs f with a directory whose file system has room for three pages. Only the
// thread of f sees the file system, and it ends with the thread.
func onSmallDisk(t *testing.T, f func(dir string) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root to mount a file system")
	}
	dir := t.TempDir()
	done := make(chan error)
	go func() {
		defer close(done)      // also if f ends the test
		runtime.LockOSThread() // and never unlocked, so the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			done <- fmt.Errorf("make the mounts private: %w", err)
			return
		}
		if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprint("size=", 3*os.Getpagesize())); err != nil {
			done <- fmt.Errorf("mount: %w", err)
			return
		}
		done <- f(dir)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// fill uses all room that is left.
func fill(dir string) error {
	f, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		return err
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, os.Getpagesize()))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("fill the disk: %w", err)
	}
	return nil
}

// TestFullDisk resets the counters on a full disk. The user is told that nothing was reset,
// the file of the last reset stays whole, and the counters count from that reset.
func TestFullDisk(t *testing.T) {
	const says = "write cache file: No space left on device"
	s := nltest.State{}
	s.Stats.SMCR.RXBytes = 1000
	b := newBench(t, s)
	b.run("smcr stats reset")
	good, err := os.ReadFile(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	// Files that were written in part are valid: what they lack is 0.
	part := bytes.Join(bytes.SplitAfter(good, []byte("\n"))[:100], nil)
	if len(part) > os.Getpagesize() || len(good) <= os.Getpagesize() {
		t.Fatalf("files of %d and %d bytes do not differ in their pages", len(part), len(good))
	}
	s.Stats.SMCR.RXBytes = 1300
	fake := nltest.NewFake(s)
	for _, tt := range []struct {
		name   string
		before []byte // nil: no file
		status int
		bytes  string // that are shown afterwards
	}{
		{"no reset before", nil, tool.Failed, "1300"},
		{"no room to grow", part, tool.Failed, "300"},
		{"no room is needed", good, 0, "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onSmallDisk(t, func(dir string) error {
				b := &bench{t, fake, filepath.Join(dir, "cache")}
				if tt.before != nil {
					if err := os.WriteFile(b.cache, tt.before, 0o600); err != nil {
						return err
					}
				}
				if err := fill(dir); err != nil {
					return err
				}
				_, errOut, status := b.run("smcr stats reset")
				if want := "Error: " + says + "\n"; status != tt.status || status != 0 && errOut != want {
					t.Errorf("smcr stats reset: status %d, %q", status, errOut)
				}
				err := Reset(b.env(), "kernel", s.Stats, s.Fallbacks)
				if tt.status != 0 {
					if err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), "the counters are not reset: "+says) {
						t.Errorf("Reset: %v", err)
					}
					if after, err := os.ReadFile(b.cache); err != nil || !bytes.Equal(after, tt.before) {
						t.Errorf("the file has %d bytes that differ from the %d before, %v", len(after), len(tt.before), err)
					}
				} else if err != nil {
					t.Errorf("Reset: %v", err)
				}
				if got := b.value("smcr stats", "(Bytes)"); got != tt.bytes {
					t.Errorf("shows %s bytes, want %s", got, tt.bytes)
				}
				// With room, all is as usual.
				if err := os.Remove(filepath.Join(dir, "full")); err != nil {
					return err
				}
				if _, errOut, status := b.run("smcr stats reset"); status != 0 {
					t.Errorf("with room: status %d, %q", status, errOut)
				}
				if got := b.value("smcr stats", "(Bytes)"); got != "0" {
					t.Errorf("after the reset: %s bytes", got)
				}
				return nil
			})
		})
	}
}
