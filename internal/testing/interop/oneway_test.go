// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/guest"
)

// oneWayBytes is what is sent in one direction, and oneWayFirst what has arrived when the
// device goes down.
const (
	oneWayBytes = 64 << 20
	oneWayFirst = 16 << 20
)

// TestOneWay sets each of the two devices of either side down while data is sent in one
// direction only, with the kernel as client and as server, in both directions. The receiver
// has nothing to say meanwhile. No transfer may end early or stop. By default, it sends only
// into the kernel, with both devices in one LAN, of which one of either side goes down, and once
// with each in a LAN of its own, to a kernel that is the server. With SMCR_INTEROP_ONEWAY=1 it does all.
func TestOneWay(t *testing.T) {
	t.Parallel()
	all := os.Getenv("SMCR_INTEROP_ONEWAY") != ""
	for _, bed := range []struct {
		name string
		setup
		always bool
	}{
		{"Version1", setup{devices: 2, version1: true}, true},
		{"Apart", setup{devices: 2, version1: true, apart: true}, true},
		{"Version2", setup{devices: 2}, false},
	} {
		if !bed.always && !all {
			continue
		}
		// Each direction has hosts of its own, so that they run at the same time.
		for i, name := range []string{"KernelToUser", "UserToKernel"} { // as directions has them
			if bed.apart && i == 0 && !all {
				continue
			}
			t.Run(bed.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				kernel, user := newBedOf(t, bed.setup)
				d := directions(kernel, user)[i]
				one := []string{"k0", "u1"}[i] // the device by default
				if bed.apart {
					one = "u0"
				}
				port := uint16(5600)
				for sends, s := range map[string]*side{"client": d.client, "server": d.server} {
					if s == kernel && !all {
						continue
					}
					for _, device := range []string{"u0", "u1", "k0", "k1"} {
						if !all && device != one {
							continue
						}
						port++
						at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), port)
						t.Run(fmt.Sprintf("%s/%s", sends, device), func(t *testing.T) {
							of := user
							if strings.HasPrefix(device, "k") {
								of = kernel
							}
							d.oneWay(t, at, sends, of, device, bed.apart)
						})
						restart(t, kernel, user) // see TestDeviceDown
					}
				}
			})
		}
	}
}

// oneWay makes a transfer during which a device goes down. If that is a device of the user-space
// stack on a LAN of its own, nothing tells the soft-RoCE of the kernel, which repeats what it has
// sent until the device is back (docs/interop.md). Data must flow, but the kernel as the server
// does not end a connection meanwhile: so the device comes back before the end.
//
// Data cannot flow if it is the device of the program's TCP connection, whose packets have no other way to
// the stack then: the program stands still as over TCP, and goes on when the device is back. SMC-R
// must have changed the link before.
//
// Linux reads a reset as the end of the stream. SO_ERROR tells who has ended it: after a reset it is ECONNRESET.
func (d direction) oneWay(t *testing.T, at netip.AddrPort, sends string, of *side, device string, apart bool) {
	dir, done := d.client.exchange(t, d.server)
	defer done()
	steps := map[string]string{
		"client": "send=10 recv=10",
		"server": "recv=10 send=10",
	}
	for who := range steps {
		if who == sends {
			steps[who] += fmt.Sprintf(" wait=go send=%d recv=1 error touch=done wait=end close", oneWayBytes)
		} else {
			steps[who] += fmt.Sprintf(" recv=%d touch=down recv=%d error send=1 drain close", oneWayFirst, oneWayBytes-oneWayFirst)
		}
	}
	server := d.server.script(t, "accept", dir, commandLimit, at, steps["server"])
	ctx, cancel := context.WithTimeout(t.Context(), 2*commandLimit)
	defer cancel()
	if err := server.WaitStdout(ctx, "listening"); err != nil {
		t.Fatal(err)
	}
	client := d.client.script(t, "connect", dir, commandLimit, at, steps["client"])
	both := []*side{d.client, d.server}
	for _, s := range both {
		eventually(t, s.backend+": a link group of two links", func() bool {
			list := types(t, s)
			return len(list) == 1 && list[0] == "SYM"
		})
	}
	if t.Failed() {
		return
	}
	of.run(t, "sh", "-c", fmt.Sprintf("touch %[1]s/go; until test -e %[1]s/down; do sleep 0.01; done; ip link set %[2]s down", dir, device))
	if apart && device == "u0" {
		eventually(t, "the connection uses the other device", func() bool {
			list := active(t, of)
			return len(list) == 1 && list[0].Netdev == "u1"
		})
		of.run(t, "ip", "link", "set", device, "up")
	}
	// If this takes too long, the programs say below what has failed.
	limit, stop := context.WithTimeout(ctx, commandLimit/2)
	_, _ = of.try(limit, "sh", "-c", fmt.Sprintf("until test -e %s/done; do sleep 0.01; done", dir))
	stop()
	if apart && of == d.client && d.server.backend == "kernel" {
		of.run(t, "ip", "link", "set", device, "up")
		// The stack must still be there to tell the kernel that the queue pair is closed.
		eventually(t, "kernel: a link group of two links again", func() bool {
			list := types(t, d.server)
			return len(list) == 1 && list[0] == "SYM"
		})
	}
	of.run(t, "touch", dir+"/end")
	for who, c := range map[string]*guest.Cmd{"client": client, "server": server} {
		r, err := c.Wait(ctx)
		if err != nil || slices.ContainsFunc([]string{"wrong", "then", "hangs", "error: "}, func(fault string) bool { return strings.Contains(r.Stdout, fault) }) {
			t.Errorf("%s: %v: %s", who, err, strings.ReplaceAll(strings.TrimSpace(r.Stdout), "\n", ", "))
		}
	}
	of.run(t, "ip", "link", "set", device, "up")
}
