// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestHeldReader: all packets that have arrived are read, each as it was sent, however many there are.
func TestHeldReader(t *testing.T) {
	testkind.System(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		defer unix.Close(fd)
	}
	r := newHeldReader()
	for n := range 2*heldMost + 2 {
		var want, got []string
		for i := range n {
			want = append(want, fmt.Sprintf("%d of %d", i, n))
			if _, err := unix.Write(fds[0], []byte(want[i])); err != nil {
				t.Fatal(err)
			}
		}
		err := r.read(uintptr(fds[1]), func(b []byte) { got = append(got, string(b)) })
		if more := n%heldMost == 0; !slices.Equal(got, want) || errors.Is(err, unix.EAGAIN) != more || !more && err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if err := r.read(^uintptr(0), nil); !errors.Is(err, unix.EBADF) || !errors.As(err, new(*os.SyscallError)) {
		t.Errorf("no socket: %v", err)
	}
}
