// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// A stage is when a device goes down.
type stage struct {
	name   string
	before func(t *testing.T, down func(), f *Flow) error // instead of agree
}

var stages = []stage{
	{"held", func(_ *testing.T, down func(), f *Flow) error { down(); return agree(f) }},
	{"let go", func(_ *testing.T, down func(), f *Flow) error { err := agree(f); down(); return err }},
}

// host returns the host of a role.
func (b *bed) host(r smc.Role) *netnstest.Host {
	if r == smc.Client {
		return b.A
	}
	return b.B
}

// keepAddresses has the IPv6 addresses of a host stay when their device goes down.
func keepAddresses(t *testing.T, h *netnstest.Host) {
	t.Helper()
	for _, l := range h.Links {
		if err := h.Do(func() error {
			return os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", l.Name, "keep_addr_on_down"), []byte("1"), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// becomes says what becomes of a connection whose client waits for what the server says first.
func (b *bed) becomes(l net.Listener) (err error) {
	b.t.Helper()
	const most = 25 * time.Second // twice what the stack needs
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, "hello")
			b.t.Cleanup(func() { c.Close() })
		}
		served <- err
	}()
	var c net.Conn
	derr := b.A.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: most}).Dial("tcp", l.Addr().String())
		return err
	})
	if derr != nil {
		return derr
	}
	defer c.Close()
	b.must(c.SetDeadline(time.Now().Add(most)))
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	return <-served
}

// TestGiven has the only device of a host go down while its stack holds a connection. What the program waits for reaches it when
// the device is up again, or the connection is reset.
func TestGiven(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	var c cases
	for name, address := range addresses {
		for _, of := range []smc.Role{smc.Client, smc.Server} {
			for _, s := range stages {
				// TCP sends SYN-ACK again after a second, and forgets the connection if there is no route by then.
				for _, down := range []time.Duration{giveAfter, 2500 * time.Millisecond} {
					if c.skips() {
						continue
					}
					t.Run(fmt.Sprint(name, "/", of, "/", s.name, "/", down), func(t *testing.T) {
						t.Parallel()
						b := newBed(t, func(b *bed, f *Flow) {
							stop := func() {}
							if f.Role == of {
								stop = func() {
									if err := b.host(of).SetLink(0, false); err != nil {
										b.t.Error(err)
									}
									go func() {
										time.Sleep(down) // Real time: that of the kernel's timers.
										if err := b.host(of).SetLink(0, true); err != nil {
											b.t.Error(err)
										}
									}()
								}
							}
							if err := s.before(t, stop, f); err != nil {
								f.Reset()
								return
							}
							_ = f.Splice()
						})
						keepAddresses(t, b.A)
						keepAddresses(t, b.B)
						err := b.becomes(b.listen(address(b.B)))
						if lost := of == smc.Server && down > time.Second; err != nil && (!lost || !errors.Is(err, syscall.ECONNRESET)) {
							t.Error(err)
						}
						t.Log(err)
						b.wantNothingGiven()
					})
				}
			}
		}
	}
}

// wantNothingGiven waits until each program is known to have what was let go.
func (b *bed) wantNothingGiven() {
	b.t.Helper()
	testkind.Eventually(b.t, "each program has what was let go", func() (any, bool) {
		n := 0
		for _, d := range b.d {
			d.mu.Lock()
			n += len(d.given)
			d.mu.Unlock()
		}
		return n, n == 0
	})
}

// TestGivenElsewhere has the device go down at which a connection was announced, while there is another route: programs and stacks
// go on by that.
func TestGivenElsewhere(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, of := range []smc.Role{smc.Client, smc.Server} {
		for _, s := range stages {
			t.Run(fmt.Sprint(of, "/", s.name), func(t *testing.T) {
				t.Parallel()
				var once sync.Once
				b := newBedOf(t, netnstest.Options{Links: 2}, func(b *bed, f *Flow) {
					stop := func() {}
					if f.Role == of {
						stop = func() {
							once.Do(func() {
								for i, h := range []*netnstest.Host{b.A, b.B} {
									peer := []*netnstest.Host{b.B, b.A}[i]
									out, err := h.Command(t.Context(), "ip", "route", "add", peer.Addr()+"/32", "via", peer.Links[1].IPv4.String(), "src", h.Addr()).CombinedOutput()
									if err != nil {
										b.t.Errorf("%v: %s", err, out)
									}
								}
								if err := b.host(of).SetLink(0, false); err != nil {
									b.t.Error(err)
								}
							})
						}
					}
					if err := s.before(t, stop, f); err != nil {
						b.t.Error(err)
						f.Reset()
						return
					}
					_ = f.Splice()
				}, func(*Config) {})
				if err := b.becomes(b.listen(b.B.Addr())); err != nil {
					t.Error(err)
				}
				b.wantNothingGiven()
			})
		}
	}
}

// TestGivenInVain has a server whose kernel forgets the connection while its device is down: whoever carries the connection hears of it,
// although nobody sends anything.
func TestGivenInVain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	inner := make(chan int, 1)
	flow := make(chan *Flow, 1)
	b := newBed(t, func(b *bed, f *Flow) {
		if err := agree(f); err != nil {
			b.t.Error(err)
			f.Reset()
			return
		}
		if f.Role == smc.Client {
			_ = f.Splice()
			return
		}
		if err := b.B.SetLink(0, false); err != nil {
			b.t.Error(err)
		}
		fd, giveBack, err := f.Split()
		if err != nil {
			b.t.Error(err)
			return
		}
		b.t.Cleanup(giveBack)
		flow <- f
		inner <- fd
	})
	l := b.listen(b.B.Addr())
	b.dial(l)
	fd := <-inner
	f := <-flow
	time.Sleep(2500 * time.Millisecond) // Real time: the kernel has no route for another SYN-ACK meanwhile.
	b.must(b.B.SetLink(0, true))
	testkind.Eventually(t, "inner is reset", func() (any, bool) {
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return fmt.Sprint(syscall.Errno(code), err), code != 0
	})
	f.Reset()
}
