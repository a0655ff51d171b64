// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
)

// An exchange is a request of smc-tools and the datagrams with which Linux 6.12 answered.
type exchange struct {
	title   string
	request []byte
	answers [][]byte
}

// readExchanges parses both forms of recordings in testdata. They were made on a
// little-endian machine, and netlink has the byte order of its host.
func readExchanges(t testing.TB, file string) []exchange {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		t.Skip("the recordings have the byte order of a little-endian machine")
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var xs []exchange
	title := ""
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 2 {
			continue
		}
		data := func() []byte {
			b, err := hex.DecodeString(fields[len(fields)-1])
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			return b
		}
		switch fields[0] {
		case "###", "#":
			title = strings.Join(fields[1:], " ")
		case ">", ">>":
			xs = append(xs, exchange{title: title, request: data()})
		case "<", "<<":
			x := &xs[len(xs)-1]
			x.answers = append(x.answers, data())
		}
	}
	if len(xs) == 0 {
		t.Fatalf("%s holds no exchange", file)
	}
	return xs
}

// messages returns the netlink messages of datagrams as hexadecimal lines. It clears what
// cannot be compared: the kernel's port ID, the text of errors, and the address family of
// sockets, for which a user-space stack returns more than the kernel.
func messages(t testing.TB, datagrams [][]byte) []string {
	t.Helper()
	ne := binary.NativeEndian
	var out []string
	for _, d := range datagrams {
		for len(d) > 0 {
			if len(d) < 16 || int(ne.Uint32(d)) > len(d) || ne.Uint32(d) < 16 {
				t.Fatalf("malformed datagram %x", d)
			}
			n := int(ne.Uint32(d))
			m := bytes.Clone(d[:n])
			d = d[min((n+3)&^3, len(d)):]
			copy(m[12:16], []byte{0, 0, 0, 0})
			switch typ := ne.Uint16(m[4:]); {
			case typ == 2 && ne.Uint32(m[16:]) != 0: // an error
				m = m[:20+int(ne.Uint32(m[20:]))]
				ne.PutUint32(m, uint32(len(m)))
				ne.PutUint16(m[6:], 0)
				copy(m[32:36], []byte{0, 0, 0, 0})
			case typ == 2:
				copy(m[32:36], []byte{0, 0, 0, 0})
			case typ == 20:
				m[16] = 43
			}
			out = append(out, hex.EncodeToString(m))
		}
	}
	return out
}

// learn decodes the answers of the kernel with the codecs of the client.
func learn(t testing.TB, xs []exchange) (nltest.State, []nl.PNET) {
	t.Helper()
	c := nl.NewClient(&replaySocket{exchanges: xs}, "recording")
	s := nltest.State{}
	ctx := t.Context()
	try := func(err error) {
		if err != nil && !errors.Is(err, nl.ErrNotSupported) {
			t.Errorf("decode: %v", err)
		}
	}
	var err error
	s.SysInfo, err = c.SysInfo(ctx)
	try(err)
	s.LinkGroups, err = c.LinkGroups(ctx)
	try(err)
	s.Links, err = c.Links(ctx)
	try(err)
	s.Devices, err = c.Devices(ctx)
	try(err)
	s.Stats, err = c.Stats(ctx)
	try(err)
	s.Fallbacks, err = c.Fallbacks(ctx)
	try(err)
	s.UEIDs, err = c.UEIDs(ctx)
	try(err)
	s.SEID, err = c.SEID(ctx)
	try(err)
	s.HSLimitation, err = c.HSLimitation(ctx)
	try(err)
	s.Connections, err = c.Connections(ctx)
	try(err)
	pnets, err := c.PNETs(ctx)
	try(err)
	return s, pnets
}

// TestReplay decodes every recorded answer of a kernel and gives the result to a server.
// It repeats the requests and checks that the server sends the same bytes as the kernel.
func TestReplay(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.hex")
	files = append(files, "testdata/raw-idle-lgr.txt")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			xs := readExchanges(t, file)
			state, pnets := learn(t, xs)
			fake := nltest.NewFake(state)
			for _, p := range pnets {
				if err := fake.AddPNET(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			s := nl.NewServer(fake, nl.ServerConfig{})
			defer s.Close()
			for i, x := range xs {
				if x.request[4] == 0x10 && x.request[16] == 10 {
					continue // CTRL_CMD_GETPOLICY is answered only by the kernel
				}
				var got [][]byte
				err := s.Handle(t.Context(), nl.Peer{}, x.request, func(b []byte) error {
					got = append(got, bytes.Clone(b))
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				want, have := messages(t, x.answers), messages(t, got)
				if strings.HasPrefix(x.title, "PNET get") && strings.HasSuffix(x.title, "do") {
					// The recorder did not wait for the acknowledgement. The recording
					// p2edit-011 has one.
					have = have[:len(have)-1]
				}
				if diff := cmp.Diff(want, have); diff != "" {
					t.Errorf("exchange %d (%s) of %x (-kernel +server):\n%s", i, x.title, x.request, diff)
				}
			}
		})
	}
}

// TestLearn compares some values with the output of smc-tools for the same datagrams.
func TestLearn(t *testing.T) {
	state, _ := learn(t, readExchanges(t, "testdata/p3live-036-smcr_linkgroup_link-show.hex"))
	want := []nl.Link{{
		LinkGroup: 0x100, Role: smc.Server, Type: smc.GroupSingle, ID: 1,
		IBDev: "rxe0", IBPort: 1, GID: mustGID(t, "0000:0000:0000:0000:0000:ffff:0a4d:0001"),
		PeerGID: mustGID(t, "0000:0000:0000:0000:0000:ffff:0a4d:0002"), Conns: 3, NetDev: 3,
		UID: nl.LinkUID{0, 0, 1, 1}, PeerUID: nl.LinkUID{0, 0, 1, 1}, State: smc.LinkActive,
	}}
	if diff := cmp.Diff(want, state.Links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	state, _ = learn(t, readExchanges(t, "testdata/p3live-052-smcr_stats.hex"))
	if got, want := state.Stats.SMCR.RXBytes, uint64(20840708); got != want {
		t.Errorf("RX bytes: got %d, want %d", got, want)
	}
	wantF := nl.Fallbacks{ClientTotal: 3, ServerTotal: 1, Reasons: []nl.Fallback{
		{Side: smc.Server, Reason: 0x05000000, Count: 1},
		{Side: smc.Client, Reason: 0x03010000, Count: 1},
		{Side: smc.Client, Reason: 0x03030000, Count: 1},
		{Side: smc.Client, Reason: 0x03060000, Count: 1},
	}}
	if diff := cmp.Diff(wantF, state.Fallbacks); diff != "" {
		t.Errorf("fallbacks (-want +got):\n%s", diff)
	}
	state, _ = learn(t, readExchanges(t, "testdata/p3live-175-smcss_-a_-d_-R.hex"))
	wantC := nl.Connection{
		State: smc.StateActive, Mode: nl.ModeSMCR, Inode: 1733,
		Local:  netip.MustParseAddrPort("[::ffff:10.77.0.1]:5201"),
		Remote: netip.MustParseAddrPort("[::ffff:10.77.0.2]:52686"),
		Info: &nl.ConnInfo{
			Token: 3, Sndbuf: 0x10000, RMBE: 0x10000, PeerRMBE: 0x10000,
			RXProd: nl.Cursor{Wrap: 0x1bf, Count: 0x25}, TXCons: nl.Cursor{Wrap: 0x1bf, Count: 0x25},
		},
		Link: &nl.ConnLink{
			LinkID: 1, IBDev: "rxe0", IBPort: 1, Role: smc.Server,
			GID:     mustGID(t, "0000:0000:0000:0000:0000:ffff:0a4d:0001"),
			PeerGID: mustGID(t, "0000:0000:0000:0000:0000:ffff:0a4d:0002"),
		},
	}
	i := slices.IndexFunc(state.Connections, func(c nl.Connection) bool { return c.Inode == wantC.Inode })
	if i < 0 {
		t.Fatalf("no connection with inode %d", wantC.Inode)
	}
	got := state.Connections[i]
	got.Cookie = 0 // smcss does not print it
	if diff := cmp.Diff(wantC, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("connection (-want +got):\n%s", diff)
	}
}

func mustGID(t *testing.T, s string) smc.GID {
	t.Helper()
	g, err := smc.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(g); got != s {
		t.Fatalf("GID %s becomes %s", s, got)
	}
	return g
}

// A replaySocket is a netlink transport that answers recorded requests from the
// recording, and others with EOPNOTSUPP.
type replaySocket struct {
	exchanges []exchange
	pending   []netlink.Message
}

func (s *replaySocket) Close() error { return nil }

func (s *replaySocket) Send(m netlink.Message) error {
	s.pending = nil
	x := s.find(m)
	if x == nil {
		s.pending = []netlink.Message{{
			Header: netlink.Header{Type: netlink.Error, Sequence: m.Header.Sequence},
			Data:   append(binary.NativeEndian.AppendUint32(nil, uint32(0x100000000-95)), make([]byte, 16)...),
		}}
		return nil
	}
	for _, d := range x.answers {
		for len(d) >= 16 {
			n := int(binary.NativeEndian.Uint32(d))
			var a netlink.Message
			if err := a.UnmarshalBinary(d[:(n+3)&^3]); err != nil {
				return err
			}
			d = d[(n+3)&^3:]
			a.Header.Sequence, a.Header.PID = m.Header.Sequence, m.Header.PID
			if a.Header.Type != netlink.Error {
				s.pending = append(s.pending, a)
			}
		}
	}
	return nil
}

// find returns the recorded exchange with the same message type and command. For link
// groups, the dump of their links is sufficient too.
func (s *replaySocket) find(m netlink.Message) *exchange {
	for _, cmd := range []byte{m.Data[0], 3} {
		for i, x := range s.exchanges {
			typ := binary.NativeEndian.Uint16(x.request[4:])
			if typ != uint16(m.Header.Type) || typ != 20 && x.request[16] != cmd {
				continue
			}
			if typ == 16 && !bytes.Contains(x.request, m.Data[4:]) {
				continue
			}
			return &s.exchanges[i]
		}
		if m.Data[0] != 2 || m.Header.Type == 16 {
			break
		}
	}
	return nil
}

func (s *replaySocket) SendMessages([]netlink.Message) error { return errors.ErrUnsupported }

func (s *replaySocket) Receive() ([]netlink.Message, error) { return s.pending, nil }

func (s *replaySocket) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		for _, m := range s.pending {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (s *replaySocket) SetDeadline(time.Time) error      { return nil }
func (s *replaySocket) SetReadDeadline(time.Time) error  { return nil }
func (s *replaySocket) SetWriteDeadline(time.Time) error { return nil }

// An interruptedSocket marks the answers to the first dumps of a table as inconsistent.
type interruptedSocket struct {
	replaySocket
	times int
}

func (s *interruptedSocket) Send(m netlink.Message) error {
	if err := s.replaySocket.Send(m); err != nil {
		return err
	}
	if m.Header.Type != 16 && s.times > 0 {
		s.times--
		s.pending[0].Header.Flags |= netlink.DumpInterrupted
	}
	return nil
}

// TestInterruptedWalk checks that rows of a table that is read again are announced.
func TestInterruptedWalk(t *testing.T) {
	xs := readExchanges(t, "testdata/p3live-168-smcss_-a.hex")
	begins, rows := 0, 0
	c := nl.NewClient(&interruptedSocket{replaySocket{exchanges: xs}, 2}, "recording")
	if err := c.EachConnection(t.Context(), func() { begins++; rows = 0 }, func(*nl.Connection) { rows++ }); err != nil || begins != 3 || rows == 0 {
		t.Errorf("%v, begun %d times, %d rows", err, begins, rows)
	}
}

func TestInterruptedDump(t *testing.T) {
	xs := readExchanges(t, "testdata/p3live-026-smcr_linkgroup.hex")
	for times, want := range []error{nil, nil, nil, nl.ErrInterrupted} {
		c := nl.NewClient(&interruptedSocket{replaySocket{exchanges: xs}, times}, "recording")
		groups, err := c.LinkGroups(t.Context())
		if !errors.Is(err, want) || (want == nil) != (len(groups) == 1) {
			t.Errorf("%d interruptions: %d link groups, %v", times, len(groups), err)
		}
	}
}
