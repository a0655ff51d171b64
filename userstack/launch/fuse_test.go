// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Requests of FUSE (linux/fuse.h).
const (
	fuseForget      = 2
	fuseGetattr     = 3
	fuseOpen        = 14
	fuseRead        = 15
	fuseRelease     = 18
	fuseFlush       = 25
	fuseInit        = 26
	fuseBatchForget = 42
)

// deafFile is a file of FUSE that can be opened, and whose server answers no
// read, and a close only if closes is set.
type deafFile struct {
	path    string
	closes  bool
	reads   atomic.Int64
	flushes atomic.Int64
}

// newDeafFile mounts one, or skips the test.
func newDeafFile(t *testing.T, closes bool) *deafFile {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	d := &deafFile{path: filepath.Join(t.TempDir(), "file"), closes: closes}
	if err := os.WriteFile(d.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opt := fmt.Sprintf("fd=%d,rootmode=100600,user_id=%d,group_id=%d", dev, os.Getuid(), os.Getgid())
	if err := unix.Mount("deaf", d.path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, opt); err != nil {
		_ = unix.Close(dev)
		t.Skipf("no FUSE: mount: %v", err)
	}
	conn := os.NewFile(uintptr(dev), "fuse") // it can be polled from now on
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.serve(conn)
	}()
	t.Cleanup(func() {
		// Whoever still waits for an answer gets an error.
		if err := unix.Unmount(d.path, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		<-over
	})
	return d
}

func (d *deafFile) serve(conn *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := conn.Read(buf)
		if err != nil || n < 40 {
			return
		}
		op, unique := binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint64(buf[8:])
		var out []byte
		errno := unix.Errno(0)
		switch op {
		case fuseFlush:
			d.flushes.Add(1)
			if !d.closes {
				continue
			}
		case fuseRead:
			d.reads.Add(1)
			continue
		case fuseForget, fuseBatchForget:
			continue
		case fuseInit:
			out = make([]byte, 64)
			binary.NativeEndian.PutUint32(out, 7)         // major
			binary.NativeEndian.PutUint32(out[4:], 31)    // minor
			binary.NativeEndian.PutUint32(out[20:], 4096) // max_write
		case fuseGetattr:
			out = make([]byte, 104)
			binary.NativeEndian.PutUint64(out[16:], 1)                    // ino
			binary.NativeEndian.PutUint64(out[24:], 4096)                 // size
			binary.NativeEndian.PutUint32(out[16+60:], unix.S_IFREG|0600) // mode
			binary.NativeEndian.PutUint32(out[16+64:], 1)                 // nlink
		case fuseOpen:
			out = make([]byte, 16)
		case fuseRelease:
		default:
			errno = unix.ENOSYS
		}
		msg := binary.NativeEndian.AppendUint32(nil, uint32(16+len(out)))
		msg = binary.NativeEndian.AppendUint32(msg, uint32(-int32(errno)))
		msg = binary.NativeEndian.AppendUint64(msg, unique)
		_, _ = conn.Write(append(msg, out...))
	}
}
