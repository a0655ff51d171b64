// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// tries returns how often TCP has tried in vain to send what waits, at twice the distance each time.
func tries(c net.Conn) (n int, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		var i *unix.TCPInfo
		if i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(i.Backoff)
		}
	})
	return n, errors.Join(failed, err)
}

// TestStranded has programs that send, and whose only device is down for a time: they go on when it is up, before their TCP tries again.
func TestStranded(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const firstTry = 200 * time.Millisecond // of Linux, at the least
	var n cases
	for family, address := range addresses {
		for i, of := range []smc.Role{smc.Client, smc.Server} {
			if n.skips() {
				continue
			}
			t.Run(fmt.Sprint(family, "/", of), func(t *testing.T) {
				t.Parallel()
				c := newCarriedBed(t, address)
				h := c.host(of)
				c.must(h.Do(func() error { return c.d[i].Follow(func(string) bool { return true }) }))
				var arrived atomic.Int64
				go func() {
					for b := make([]byte, 64<<10); ; {
						n, err := c.inner[i].Read(b)
						if err != nil {
							return
						}
						arrived.Add(int64(n))
					}
				}()
				go func() {
					// Its buffer is full when the device is down, so it waits for TCP.
					for err := error(nil); err == nil; {
						_, err = c.programs[i].Write(make([]byte, 64<<10))
					}
				}()
				goesOn := func(when string) {
					before := arrived.Load()
					testkind.Eventually(t, "the program sends "+when, func() (any, bool) {
						now := arrived.Load()
						return now - before, now > before
					})
				}
				goesOn("at first")
				// The stack looks once a second. On a busy machine TCP may be sooner, but not at greater and greater distances.
				for most := 5; ; most++ {
					c.must(h.SetLink(0, false))
					testkind.Eventually(t, "TCP has tried in vain", func() (any, bool) {
						n, err := tries(c.programs[i])
						c.must(err)
						return n, n >= most
					})
					tried := time.Now()
					c.must(h.SetLink(0, true))
					if family == "ipv6" { // the kernel has removed it
						c.befall(of, []string{"ip -6 addr replace V6/64 dev eth0 nodad"})
					}
					goesOn("when the device is up")
					// Not a limit of ours: when TCP tries again.
					if time.Since(tried) < firstTry<<most {
						return
					}
					if most == 7 {
						t.Fatal("it goes on when TCP tries again")
					}
				}
			})
		}
	}
}
