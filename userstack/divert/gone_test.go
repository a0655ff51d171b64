// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/quota"
)

// tables returns a Diverter that has the maps of the programs, and not the programs.
func tables(t *testing.T) *Diverter {
	testkind.System(t)
	_ = rlimit.RemoveMemlock()
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	d := &Diverter{bpf: &bpfObjects{}, gone: [2]map[Tuple]*Flow{{}, {}}, flows: map[Tuple]*Flow{}, ending: map[*Flow]time.Time{}}
	for name, m := range map[string]**ebpf.Map{bpfMapFlows: &d.bpf.Flows, bpfMapWays: &d.bpf.Ways, bpfMapRemoved: &d.bpf.Removed, bpfMapStates: &d.bpf.States} {
		if *m, err = ebpf.NewMap(spec.Maps[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*m).Close() })
	}
	return d
}

// TestForgetBehindWays: the entry of a connection in map flows is gone before its way is. A connection that begins meanwhile, with the
// same addresses and ports, could otherwise be removed in its place, and then its PROPOSAL would reach the program.
func TestForgetBehindWays(t *testing.T) {
	d := tables(t)
	const n = 20_000
	flows, keys := make([]*Flow, n), make([]bpfTuple, n)
	for i := range flows {
		keys[i].Lport, keys[i].Rport = uint16(i), 1
		f := &Flow{d: d, Tuple: tupleOf(keys[i]), outer: &stream{}, account: quota.Account(0)}
		flows[i], d.flows[f.Tuple] = f, f
		if err := errors.Join(put(d.bpf.Flows, keys[i], &bpfFlow{Held: 1}, ebpf.UpdateNoExist), put(d.bpf.Ways, keys[i], &bpfWay{State: waySplit}, ebpf.UpdateNoExist)); err != nil {
			t.Fatal(err)
		}
	}
	var ended atomic.Bool
	looked, bare := make(chan int), 0
	go func() {
		times := 0
		for i := 0; !ended.Load(); i = (i + 1) % n {
			var w bpfWay
			var k bpfFlow
			if look(d.bpf.Ways, keys[i], &w) != nil && look(d.bpf.Flows, keys[i], &k) == nil {
				bare++
			}
			times++
		}
		looked <- times
	}()
	d.forget(flows...)
	ended.Store(true)
	t.Logf("looked %d times", <-looked)
	if bare > 0 {
		t.Errorf("a flow had no way %d times", bare)
	}
	var left bpfTuple
	if d.bpf.Flows.NextKey(nil, &left) == nil || d.bpf.Ways.NextKey(nil, &left) == nil || len(d.flows) != 0 {
		t.Error("something is left")
	}
}

// TestEndsBy: a connection is made of the packet that ends its handshake, and of no other one that is read first.
func TestEndsBy(t *testing.T) {
	client, server := bpfFlow{Held: 1, Isn: 99}, bpfFlow{Held: 1, Isn: 99, Server: 1}
	announced := client
	announced.Held = 0
	for _, test := range []struct {
		k     bpfFlow
		flags uint8
		ack   uint32
		want  bool
	}{
		{client, flagSYN | flagACK, 100, true},
		{client, flagSYN | flagACK, 99, false}, // for an earlier SYN
		{client, flagACK, 100, false},
		{client, flagRST | flagACK, 100, false},
		{client, flagSYN, 100, false},
		{announced, flagSYN | flagACK, 100, false},
		{server, flagACK, 100, true},
		{server, flagACK | flagPSH, 100, true},
		{server, flagACK | flagFIN, 100, true},
		{server, flagACK, 101, false},
		{server, flagRST, 100, false},
		{server, flagRST | flagACK, 100, false},
		{server, flagSYN | flagACK, 100, false},
	} {
		if got := test.k.endsBy(segment{flags: test.flags, ack: test.ack}); got != test.want {
			t.Errorf("server %d, held %d, flags %#x, acknowledges %d: %v", test.k.Server, test.k.Held, test.flags, test.ack, got)
		}
	}
}

// TestGuard: an announced connection that is too old is removed behind a way that leads nowhere, and not if it is another one by now.
func TestGuard(t *testing.T) {
	for name, test := range map[string]struct {
		was, is bpfFlow
		way     uint32 // or none
		want    bool
		left    uint32
	}{
		"the same":              {was: bpfFlow{Id: 2}, is: bpfFlow{Id: 2}, way: none, want: true, left: waySplit},
		"another one":           {was: bpfFlow{Id: 2}, is: bpfFlow{Id: 4}, way: none, left: none},
		"held by now":           {was: bpfFlow{Id: 2}, is: bpfFlow{Id: 2, Held: 1}, way: wayHeld, left: wayHeld},
		"held":                  {was: bpfFlow{Id: 2, Held: 1}, is: bpfFlow{Id: 2, Held: 1}, way: wayHeld, want: true, left: wayHeld},
		"probed":                {was: bpfFlow{Id: 2}, is: bpfFlow{Id: 2}, way: wayProbed, want: true, left: waySplit},
		"probed, and it is new": {was: bpfFlow{Id: 2}, is: bpfFlow{Id: 4}, way: wayProbed, left: none},
	} {
		t.Run(name, func(t *testing.T) {
			d := tables(t)
			key := bpfTuple{Lport: 7}
			if test.way != none {
				if err := put(d.bpf.Ways, key, &bpfWay{State: test.way}, ebpf.UpdateNoExist); err != nil {
					t.Fatal(err)
				}
			}
			if err := put(d.bpf.Flows, key, &test.is, ebpf.UpdateNoExist); err != nil {
				t.Fatal(err)
			}
			left := uint32(none)
			var w bpfWay
			got := d.guard(waiting{key, test.was})
			if look(d.bpf.Ways, key, &w) == nil {
				left = w.State
			}
			if _, noted := d.gone[0][tupleOf(key)]; got != test.want || left != test.left || noted != test.want {
				t.Errorf("guarded %v, way %d, noted %v", got, left, noted)
			}
		})
	}
}

const none = 99

// TestPassOn: a SYN that was held while the connection before it was forgotten goes on, to whom it is for; of what else comes then, nothing does.
func TestPassOn(t *testing.T) {
	d := tables(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := os.NewFile(uintptr(fds[0]), "held packets"), os.NewFile(uintptr(fds[1]), "the device")
	defer here.Close()
	defer there.Close()
	d.held = &heldEnd{socket: here}
	if d.held.raw, err = here.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	syn := func(from, to string, flags layers.TCP) frame {
		flags.SrcPort, flags.DstPort = 5, 5
		fr, err := parseFrame(packet(t, from, to, flags, ""))
		if err != nil {
			t.Fatal(err)
		}
		return fr
	}
	const peer, own = "10.0.0.1", "10.0.0.2"
	came, went := syn(peer, own, layers.TCP{SYN: true}), syn(own, peer, layers.TCP{SYN: true})
	f := &Flow{d: d, Tuple: came.tuple, via: bpfHop{Dev: 3}, outer: &stream{}}
	for generation := range d.gone {
		d.gone = [2]map[Tuple]*Flow{{}, {}}
		d.frame(came) // not known
		d.gone[generation][f.Tuple] = f
		d.frame(syn(peer, own, layers.TCP{ACK: true}))
		for _, test := range []struct {
			fr   frame
			whom byte
		}{{came, forProgram}, {went, forPeer}} {
			d.frame(test.fr)
			b := make([]byte, 2000)
			n, err := there.Read(b)
			if want := test.fr.to(test.whom, 3); err != nil || !bytes.Equal(b[:n], want) {
				t.Errorf("%x, %v, want %x", b[:n], err, want)
			}
		}
	}
	if n, err := unix.Read(fds[1], make([]byte, 2000)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d more bytes, %v", n, err)
	}
}
