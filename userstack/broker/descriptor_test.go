// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestDescriptorBusy: a close does not wait for calls of Control. The last of these closes the
// descriptor.
func TestDescriptorBusy(t *testing.T) {
	testkind.System(t)
	for _, how := range []string{"Close", "CloseAside"} {
		t.Run(how, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[1])
			d := NewDescriptor(pair[0])
			then := make(chan struct{})
			err = d.Control(func(fd int) error {
				if how == "Close" {
					close(then)
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				} else {
					d.CloseAside(func() { close(then) })
				}
				if err := d.Control(func(int) error { return nil }); !errors.Is(err, os.ErrClosed) {
					t.Errorf("Control after Close: %v", err)
				}
				_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
				return err
			})
			if err != nil {
				t.Error(err)
			}
			<-then
			p := []unix.PollFd{{Fd: int32(pair[1]), Events: unix.POLLIN}}
			if n, err := unix.Poll(p, int((10 * time.Second).Milliseconds())); n != 1 || err != nil {
				t.Errorf("the descriptor is not closed: %d, %v", n, err)
			}
		})
	}
}
