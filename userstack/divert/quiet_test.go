// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestQuiet has peers to which nothing is announced: one port, by one user.
func TestQuiet(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l, other := b.listen(b.B.Addr()), b.listen(b.B.Addr())
	at := netip.MustParseAddrPort(l.Addr().String())
	uid := uint32(os.Geteuid())
	for _, step := range []struct {
		name  string
		quiet func() error
		taken [2]int64 // at l and at other
	}{
		{"a user, a port", func() error { return b.d[0].Quiet(uid, at, Silence{For: time.Hour, Why: smc.DiagNoPath}) }, [2]int64{0, 1}},
		{"no more", func() error { return b.d[0].Quiet(uid, at, Silence{For: 0, Why: smc.DiagNoPath}) }, [2]int64{1, 1}},
		{"another user", func() error { return b.d[0].Quiet(uid+1, at, Silence{For: time.Hour, Why: smc.DiagNoPath}) }, [2]int64{1, 1}},
		{"all users and no port, which are nothing", func() error {
			return errors.Join(
				b.d[0].Quiet(^uint32(0), at, Silence{For: time.Hour, Why: smc.DiagNoPath}),
				b.d[0].Quiet(uid, netip.AddrPortFrom(at.Addr(), 0), Silence{For: time.Hour, Why: smc.DiagNoPath}))
		}, [2]int64{1, 1}},
	} {
		b.must(step.quiet())
		for i, l := range []net.Listener{l, other} {
			before := b.taken[0].Load()
			b.works(l)
			if n := b.taken[0].Load() - before; n != step.taken[i] {
				t.Errorf("%s: %d connections to port %d were taken, want %d", step.name, n, i, step.taken[i])
			}
		}
	}
	b.wantCount(smc.DiagNoPath, 1)
}

// TestQuietCode: each connection to a peer that has declined has the reason of that peer, as the silence has.
func TestQuietCode(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	at, uid := netip.MustParseAddrPort(l.Addr().String()), uint32(os.Geteuid())
	for _, code := range []smc.Diagnosis{smc.DiagNoSMCRDev, 0x12345678, 0} {
		b.must(b.d[0].Quiet(uid, at, Silence{For: time.Hour, Why: smc.DiagPeerDeclined, PeerWhy: code}))
		all, err := b.d[0].Silences()
		b.must(err)
		if len(all) != 1 || all[0].Why != smc.DiagPeerDeclined || all[0].PeerWhy != code || all[0].Peer != at {
			t.Errorf("silences are %+v, want one with %v", all, code)
		}
		known, err := b.d[0].Plains()
		b.must(err)
		const times = 3
		for range times {
			b.works(l)
		}
		after, err := b.d[0].Plains()
		b.must(err)
		n := 0
		for cookie, p := range after {
			if _, old := known[cookie]; !old && p.Why == smc.DiagPeerDeclined && p.PeerWhy == code {
				n++
			}
		}
		if n != times {
			t.Errorf("%d connections have the reason %v, want %d: %v", n, code, times, after)
		}
	}
	b.wantCount(smc.DiagPeerDeclined, 9)
}

// TestQuietTry: when a silence with a try is over, one connection is announced, until something is known of it.
func TestQuietTry(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	at := netip.MustParseAddrPort(l.Addr().String())
	b.must(b.d[0].Quiet(uint32(os.Geteuid()), at, Silence{For: 1, Again: time.Hour, Why: smc.DiagShort}))
	for range 3 {
		b.works(l)
	}
	b.wantTaken(1, 1)
	b.must(b.d[0].Quiet(uint32(os.Geteuid()), at, Silence{}))
	b.works(l)
	b.wantTaken(2, 2)
	b.wantCount(smc.DiagShort, 2)
}

// TestCopied has a device on the way that copies options from SYN to SYN-ACK: the connection is TCP, and
// the next ones of this user are not announced to this port. The end of the handshake says so to a server behind that device.
// Other ports of the host may be those of other hosts, and other users have their own experience.
func TestCopied(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	b.must(b.d[1].Close())
	host, ends := copier(t, b)
	for _, step := range []struct {
		name   string
		uid    int
		port   string
		probed bool
	}{
		{"the first", os.Geteuid(), "9998", true},
		{"the next", os.Geteuid(), "9998", false},
		{"another port", os.Geteuid(), "9999", true},
		{"another user", 1000, "9998", true},
		{"the next of that user", 1000, "9998", false},
	} {
		b.must(b.A.Do(func() error {
			c, err := (&net.Dialer{Control: chowned(step.uid)}).Dial("tcp", net.JoinHostPort(host, step.port))
			if err != nil {
				return fmt.Errorf("dial: %w", err)
			}
			return c.Close()
		}))
		if got := bytes.Contains((<-ends).Contents, []byte{254, 6, 0x53, 0x4d, 0x43, 0x72}); got != step.probed {
			t.Errorf("%s: the end of the handshake has the probe: %t, want %t", step.name, got, step.probed)
		}
	}
	b.wantCount(smc.DiagCopied, 5)
	quiet, err := b.d[0].Silences()
	b.must(err)
	known := map[string]bool{}
	for _, q := range quiet {
		known[fmt.Sprint(q.UID, " ", q.Peer)] = q.Why == smc.DiagCopied && q.For > 0 && q.For <= time.Minute
	}
	own := os.Geteuid()
	want := map[string]bool{fmt.Sprint(own, " ", host, ":9998"): true, fmt.Sprint(own, " ", host, ":9999"): true, fmt.Sprint("1000 ", host, ":9998"): true}
	if !maps.Equal(known, want) {
		t.Errorf("what is known: %+v, want %v", quiet, want)
	}
	b.wantTaken(0, 0)
	b.gone()
}

// copier answers SYNs to an address that no host has, at ports 9998 and 9999, with SYN-ACKs of the same options, on host B.
// ends has the first answers to those.
func copier(t *testing.T, b *bed) (host string, ends <-chan *layers.TCP) {
	t.Helper()
	host = "10.77.0.77"
	link := b.B.Links[0]
	out, err := b.A.Command(t.Context(), "ip", "neigh", "replace", host, "lladdr", link.MAC.String(), "dev", b.A.Links[0].Name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var file *os.File
	b.must(b.B.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(swapped(unix.ETH_P_IP)))
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "packets")
		i, err := net.InterfaceByName(link.Name)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swapped(unix.ETH_P_IP), Ifindex: i.Index})
	}))
	t.Cleanup(func() { file.Close() })
	answers := make(chan *layers.TCP, 10)
	go func() {
		buf, made := make([]byte, 2000), map[netip.AddrPort]bool{}
		for {
			n, err := file.Read(buf)
			if err != nil {
				return
			}
			f, err := parseFrame(buf[:n])
			if err != nil || f.tuple.Local.Port()|1 != 9999 || f.flags != flagSYN && (f.flags != flagACK || made[f.tuple.Remote]) {
				continue
			}
			syn, ok := gopacket.NewPacket(f.b, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
			if !ok {
				continue
			}
			if made[f.tuple.Remote] = f.flags == flagACK; f.flags == flagACK {
				answers <- syn
				continue
			}
			synack := layers.TCP{SrcPort: syn.DstPort, DstPort: syn.SrcPort, Seq: 1, Ack: syn.Seq + 1, SYN: true, ACK: true, Window: 1000, Options: syn.Options}
			answer := packet(t, host, f.tuple.Remote.Addr().String(), synack, "")
			copy(answer, f.b[6:12]) // to whom it came from
			copy(answer[6:], link.MAC)
			if _, err := file.Write(answer); err != nil {
				return
			}
		}
	}()
	return host, answers
}
