// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestSettings: the settings of the namespace are those of its sockets. What outer carries after a decline, it carries as
// the host's connections do.
func TestSettings(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	flows := make(chan *Flow, 2)
	b := newBed(t, func(b *bed, f *Flow) {
		flows <- f
		splice(b, f)
	})
	var host string
	b.must(b.A.Do(func() error {
		host = hostCongestion()
		return nil
	}))
	if host == "" || host != b.d[0].congestion {
		t.Errorf("the host has %q, the stack knows %q", host, b.d[0].congestion)
	}
	b.must(b.d[0].ns.do(func() error {
		for _, s := range settings {
			if got, err := os.ReadFile("/proc/sys/net/" + s.name); err != nil || strings.TrimSpace(string(got)) != s.value {
				t.Errorf("%s is %q, %v, want %s", s.name, got, err, s.value)
			}
		}
		return nil
	}))
	client, _ := b.connect(b.listen(b.B.Addr()))
	text := func(s *stream) (got string) {
		s.control(func(fd int) {
			name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			idle, ierr := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			alive, aerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			got = fmt.Sprint(name, idle, alive, errors.Join(err, ierr, aerr))
		})
		return got
	}
	for range 2 {
		f := <-flows
		testkind.Eventually(t, "the options of the sockets of a connection that was declined", func() (any, bool) {
			got := [2]string{text(f.program()), text(f.outer)}
			return got, got == [2]string{fmt.Sprint("reno", 15, 1, nil), fmt.Sprint(host, 15, 1, nil)}
		})
	}
	client.Close()
}

// TestSendsAtOnce: inner and outer send small packets at once, outer also CLC messages that a reset may follow. It keeps the
// connection alive.
func TestSendsAtOnce(t *testing.T) {
	testkind.System(t)
	for _, declines := range []bool{false, true} {
		t.Run(fmt.Sprint("declines: ", declines), func(t *testing.T) {
			flows := make(chan *Flow, 2)
			b := newBed(t, func(b *bed, f *Flow) {
				if flows <- f; declines {
					splice(b, f)
					return
				}
				_, giveBack, err := f.Split()
				if err != nil {
					b.t.Errorf("%v: %v", f.Role, err)
					return
				}
				giveBack()
			})
			b.connect(b.listen(b.B.Addr()))
			for range 2 {
				f := <-flows
				testkind.Eventually(t, "TCP_NODELAY of inner and outer, SO_KEEPALIVE of outer", func() (any, bool) {
					var is [3]int
					for i, s := range []*stream{f.program(), f.outer} {
						s.control(func(fd int) { is[i], _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY) })
					}
					f.outer.control(func(fd int) { is[2], _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE) })
					return is, is == [3]int{1, 1, 1}
				})
			}
		})
	}
}
