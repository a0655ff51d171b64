// SPDX-License-Identifier: Apache-2.0

package gauge

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestRead: what this process takes appears in its sample.
func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gauge")
	if err := Serve(path); err != nil {
		t.Fatal(err)
	}
	before, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	const descriptors, goroutines, bytesHeld = 20, 30, 16 << 20
	var files []*os.File
	for range descriptors {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	stop := make(chan struct{})
	for range goroutines {
		go func() { <-stop }()
	}
	held := bytes.Repeat([]byte{1}, bytesHeld)
	const untouched = 1 << 30 // more than Go maps by itself
	mapped, err := unix.Mmap(-1, 0, untouched, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	after, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.Descriptors - before.Descriptors; got < descriptors || got > descriptors+3 {
		t.Errorf("%d more descriptors, want %d", got, descriptors)
	}
	if got := after.Goroutines - before.Goroutines; got < goroutines || got > goroutines+3 {
		t.Errorf("%d more goroutines, want %d", got, goroutines)
	}
	if grew := after.Heap - before.Heap; grew < bytesHeld*3/4 || grew > 2*bytesHeld {
		t.Errorf("the heap grew by %d bytes, want %d", grew, bytesHeld)
	}
	if grew := after.Mapped - before.Mapped; grew < untouched || grew > untouched+8*bytesHeld+(128<<20) {
		t.Errorf("%d more bytes are mapped, want %d", grew, untouched)
	}
	// The race detector needs memory of its own for what is written to.
	if grew := after.RSS - before.RSS; grew < bytesHeld*3/4 || grew > 8*bytesHeld {
		t.Errorf("resident memory grew by %d bytes, want at least %d", grew, bytesHeld)
	}
	runtime.KeepAlive(held)
	close(stop)
	for _, f := range files {
		f.Close()
	}
}

// TestEntries: entries of maps that grow are counted, by the names of the maps.
func TestEntries(t *testing.T) {
	testkind.System(t)
	maps := map[string]*ebpf.MapSpec{
		"grows":   {Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 100},
		"is_full": {Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 100},
		"newest":  {Type: ebpf.LRUHash, KeySize: 4, ValueSize: 4, MaxEntries: 100},
	}
	for name, spec := range maps {
		spec.Name = name
		m, err := ebpf.NewMap(spec)
		if errors.Is(err, fs.ErrPermission) {
			t.Skip("needs CAP_BPF")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		twice, err := m.Clone()
		if err != nil {
			t.Fatal(err)
		}
		defer twice.Close()
		for i := range uint32(7) {
			if err := m.Put(i, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := Entries(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got["grows"] != 7 {
		t.Errorf("%v, want 7 entries of grows and nothing of the others", got)
	}
}

func TestNoProcess(t *testing.T) {
	if _, err := Entries(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Of(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Ask(filepath.Join(t.TempDir(), "nobody"), Live); err == nil {
		t.Error("nobody answers, and there is no error")
	}
}

func TestKernel(t *testing.T) {
	if n, err := Kernel(); err != nil || n < 1<<20 {
		t.Errorf("the kernel has %d bytes: %v", n, err)
	}
}
