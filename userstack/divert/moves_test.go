// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// neighbours are those by a device that nothing answers at.
func neighbours(dev string) []string {
	return []string{"ip neigh replace PEER4 lladdr 02:00:00:00:00:77 dev " + dev, "ip -6 neigh replace PEER6 lladdr 02:00:00:00:00:77 dev " + dev}
}

// second makes another device.
var second = []string{"ip link add other0 type veth peer name rest0", "ip link set rest0 up", "ip link set other0 up"}

// routed makes it that of the route to the peer.
var routed = slices.Concat([]string{"ip route replace PEER4/32 dev other0", "ip -6 route replace PEER6/128 dev other0"}, neighbours("other0"))

// moved are fates of devices after which there is a way to the program again.
var movedFates = []fate{
	{"deleted, and made again", slices.Concat([]string{"ip link del eth0"}, again, neighbours("eth0"))},
	{"moved, and made again", slices.Concat([]string{"ip link set eth0 netns PEER name away0"}, again, neighbours("eth0"))},
	{"renamed", slices.Concat([]string{
		"ip link set eth0 down", "ip link set eth0 name new0", "ip link set new0 up", "ip -6 addr replace V6/64 dev new0 nodad",
	}, neighbours("new0"))},
	{"without addresses for a moment", slices.Concat([]string{
		"ip addr flush dev eth0", "ip addr add V4/24 dev eth0", "ip -6 addr add V6/64 dev eth0 nodad",
	}, neighbours("eth0"))},
	{"deleted, with the addresses elsewhere", slices.Concat([]string{"ip link del eth0"}, second, []string{
		"ip addr add V4/32 dev lo", "ip -6 addr add V6/128 dev lo nodad",
	}, routed)},
	{"another one by a route", slices.Concat(second, []string{"sysctl -qw net.ipv4.conf.all.rp_filter=1", "sysctl -qw net.ipv4.conf.other0.rp_filter=1"}, routed)},
}

// TestMoves has programs that only receive, whose device meets its fate: they go on.
func TestMoves(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	var n cases
	for family, address := range addresses {
		for _, of := range []smc.Role{smc.Client, smc.Server} {
			for _, f := range movedFates {
				if n.skips() {
					continue
				}
				t.Run(fmt.Sprint(family, "/", of, "/", f.name), func(t *testing.T) {
					t.Parallel()
					c := newCarriedBed(t, address)
					i := map[smc.Role]int{smc.Client: 0, smc.Server: 1}[of]
					c.must(c.host(of).Do(func() error { return c.d[i].Follow(func(string) bool { return true }) }))
					c.must(c.programs[i].(*net.TCPConn).SetKeepAlive(false)) // it would send by that
					c.send(i)
					c.goesOn(i, "at first")
					c.befall(of, f.lines)
					c.goesOn(i, "then")
				})
			}
		}
	}
}

// TestMovesNotBound has a program whose socket is bound to a device that is down, while there is another one: the connection
// waits for its own, and is not reset by what comes by the other one.
func TestMovesNotBound(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	flows, fds := make(chan *Flow, 1), make(chan int, 1)
	b := newBed(t, func(b *bed, f *Flow) {
		if err := agree(f); err != nil {
			b.t.Errorf("%v: %v", f.Role, err)
			f.Reset()
			return
		}
		if f.Role == smc.Server {
			_ = f.Splice()
			return
		}
		fd, giveBack, err := f.Split()
		if err != nil {
			b.t.Error(err)
			return
		}
		b.t.Cleanup(giveBack)
		flows <- f
		fds <- fd
	})
	b.control = func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "eth0") }), err)
	}
	b.must(b.A.Do(func() error { return b.d[0].Follow(func(string) bool { return true }) }))
	l := b.listen(b.B.Addr())
	var program net.Conn = b.dial(l)
	f, fd := <-flows, <-fds
	defer f.Reset()
	b.control = nil
	b.dial(l)
	free, _ := <-flows, <-fds
	defer free.Reset()
	dev := f.comesBy()
	b.befall(smc.Client, slices.Concat(second, []string{"ip link set eth0 down"}, routed))
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	testkind.Eventually(t, "packets of a socket that is not bound come by another device", func() (any, bool) {
		now := free.comesBy()
		return now, now != dev
	})
	if now := f.comesBy(); now != dev {
		t.Errorf("packets come by device %d, want %d", now, dev)
	}
	b.befall(smc.Client, []string{"ip link set eth0 up"})
	b.must(program.SetReadDeadline(time.Now().Add(testkind.Patience)))
	got := make([]byte, 5)
	if n, err := program.Read(got); err != nil || string(got[:n]) != "hello" {
		t.Errorf("got %q, %v", got[:n], err)
	}
}
