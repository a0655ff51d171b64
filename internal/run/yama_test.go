// SPDX-License-Identifier: Apache-2.0

package run

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMayTraceAll: Yama and the capability decide whether a launcher may stand beside its program.
func TestMayTraceAll(t *testing.T) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&hdr, &had[0]); err != nil {
		t.Fatal(err)
	}
	const trace = 1 << unix.CAP_SYS_PTRACE
	privileged := had[0].Effective&trace != 0
	dir := t.TempDir()
	for text, open := range map[string]bool{"": true, "0\n": true, "1\n": false, "2\n": false, "3\n": false} {
		file := filepath.Join(dir, "scope")
		_ = os.Remove(file)
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := mayTraceAll(file); got != (open || privileged) {
			t.Errorf("%q: %v with the capability %v", text, got, privileged)
		}
		if !privileged {
			continue
		}
		runtime.LockOSThread()
		less := had
		less[0].Effective &^= trace
		if err := unix.Capset(&hdr, &less[0]); err != nil {
			t.Fatal(err)
		}
		if got := mayTraceAll(file); got != open {
			t.Errorf("%q without the capability: %v", text, got)
		}
		if err := unix.Capset(&hdr, &had[0]); err != nil {
			t.Fatal(err)
		}
		runtime.UnlockOSThread()
	}
}
