// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestNamespaces: a network namespace is there as long as one thread uses it, whatever its process does, or as long
// as it is mounted anywhere. That others are not there is not asked: their numbers are given again.
func TestNamespaces(t *testing.T) {
	netnstest.Require(t)
	has := func(ino uint64) bool {
		alive, err := namespaces()
		if err != nil {
			t.Fatal(err)
		}
		return alive[ino]
	}
	made, release, done := make(chan uint64), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked, so that the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		own, err := ownNamespace()
		if err != nil {
			t.Error(err)
		}
		made <- own.ino
		<-release
	}()
	ino := <-made
	if !has(ino) {
		t.Error("that of a thread is not there")
	}
	close(release)
	<-done

	// Mounted by a process in a mount namespace of its own, in which it is not.
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
		`unshare --net="$0" true && stat -L -c %i "$0" && exec cat`, file)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(stdout, &ino); err != nil {
		t.Fatal(err)
	}
	if !has(ino) {
		t.Error("one that is mounted elsewhere is not there")
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}
