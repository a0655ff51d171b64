// SPDX-License-Identifier: Apache-2.0

package nltest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"

	"smcr/nl"
	"smcr/pnet"
	"smcr/smc"
	"smcr/stats"
)

// A State has the answers of a [Fake].
type State struct {
	SysInfo      nl.SysInfo
	LinkGroups   []nl.LinkGroup
	LinkGroupsD  []nl.LinkGroupD
	Links        []nl.Link
	Devices      []nl.Device
	DevicesD     []nl.Device
	Stats        nl.Stats
	Fallbacks    nl.Fallbacks
	UEIDs        []string
	SEID         nl.SEID
	HSLimitation bool
	Connections  []nl.Connection
	// TraceConns and TraceEvents are what a trace shows, once.
	TraceConns  []nl.TraceConn
	TraceEvents []nl.TraceEvent
	Attachments []nl.Attachment
	Learnt      []nl.Learnt
}

// A Fake is an [nl.Control] in memory. Its tables change by the rules of the
// kernel.
type Fake struct {
	mu        sync.Mutex
	state     State
	pnets     pnet.Table
	listening int      // sockets that were handed over
	netdevs   []string // existing network devices; nil means that all exist
	err       error
	closed    bool
	traces    int
}

var (
	_ nl.Control     = (*Fake)(nil)
	_ nl.ControlSMCD = (*Fake)(nil)
	_ nl.Attacher    = (*Fake)(nil)
	_ nl.Learner     = (*Fake)(nil)
)

// NewFake returns a Fake with this state.
func NewFake(s State) *Fake { return &Fake{state: s} }

// SetNetDevs sets the network devices that exist. AddPNET refuses others with ENODEV.
func (f *Fake) SetNetDevs(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.netdevs = names
}

// SetError makes every operation fail with err. Nil ends this.
func (f *Fake) SetError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// SetStats changes the counters.
func (f *Fake) SetStats(change func(*nl.Stats, *nl.Fallbacks)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state.Stats, &f.state.Fallbacks)
}

// Closed reports whether Close was called.
func (f *Fake) Closed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// get reads a part of the state.
func get[T any](f *Fake, ctx context.Context, read func(*State) T) (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var zero T
	switch {
	case ctx.Err() != nil:
		return zero, ctx.Err()
	case f.err != nil:
		return zero, f.err
	case f.closed:
		return zero, os.ErrClosed
	}
	return read(&f.state), nil
}

// change changes the state.
func (f *Fake) change(ctx context.Context, fn func(*State) error) error {
	err, ctlErr := get(f, ctx, fn)
	if ctlErr != nil {
		return ctlErr
	}
	return err
}

// SysInfo implements [nl.Control].
func (f *Fake) SysInfo(ctx context.Context) (nl.SysInfo, error) {
	return get(f, ctx, func(s *State) nl.SysInfo { return s.SysInfo })
}

// LinkGroups implements [nl.Control].
func (f *Fake) LinkGroups(ctx context.Context) ([]nl.LinkGroup, error) {
	return get(f, ctx, func(s *State) []nl.LinkGroup { return slices.Clone(s.LinkGroups) })
}

// LinkGroupsD implements [nl.ControlSMCD].
func (f *Fake) LinkGroupsD(ctx context.Context) ([]nl.LinkGroupD, error) {
	return get(f, ctx, func(s *State) []nl.LinkGroupD { return slices.Clone(s.LinkGroupsD) })
}

// Links implements [nl.Control].
func (f *Fake) Links(ctx context.Context) ([]nl.Link, error) {
	return get(f, ctx, func(s *State) []nl.Link { return slices.Clone(s.Links) })
}

// Devices implements [nl.Control].
func (f *Fake) Devices(ctx context.Context) ([]nl.Device, error) {
	return get(f, ctx, func(s *State) []nl.Device { return slices.Clone(s.Devices) })
}

// DevicesD implements [nl.ControlSMCD].
func (f *Fake) DevicesD(ctx context.Context) ([]nl.Device, error) {
	return get(f, ctx, func(s *State) []nl.Device { return slices.Clone(s.DevicesD) })
}

// Stats implements [nl.Control].
func (f *Fake) Stats(ctx context.Context) (nl.Stats, error) {
	return get(f, ctx, func(s *State) nl.Stats { return s.Stats })
}

// Fallbacks implements [nl.Control].
func (f *Fake) Fallbacks(ctx context.Context) (nl.Fallbacks, error) {
	return get(f, ctx, func(s *State) nl.Fallbacks {
		fb := s.Fallbacks
		fb.Reasons, fb.PeerReasons = slices.Clone(fb.Reasons), slices.Clone(fb.PeerReasons)
		return fb
	})
}

// UEIDs implements [nl.Control].
func (f *Fake) UEIDs(ctx context.Context) ([]string, error) {
	return get(f, ctx, func(s *State) []string { return slices.Clone(s.UEIDs) })
}

// AddUEID implements [nl.Control].
func (f *Fake) AddUEID(ctx context.Context, eid string) error {
	return f.change(ctx, func(s *State) error {
		if err := nl.CheckEID(eid); err != nil {
			return err
		}
		switch {
		case len(s.UEIDs) >= nl.MaxUEIDs: // the kernel checks this first too
			return syscall.ERANGE
		case slices.Contains(s.UEIDs, eid):
			return syscall.EEXIST
		}
		s.UEIDs = append(s.UEIDs, eid)
		return nil
	})
}

// RemoveUEID implements [nl.Control].
func (f *Fake) RemoveUEID(ctx context.Context, eid string) error {
	return f.change(ctx, func(s *State) error {
		i := slices.Index(s.UEIDs, eid)
		if i < 0 {
			return syscall.ENOENT
		}
		s.UEIDs = slices.Delete(s.UEIDs, i, i+1)
		return nil
	})
}

// FlushUEID implements [nl.Control].
func (f *Fake) FlushUEID(ctx context.Context) error {
	return f.change(ctx, func(s *State) error {
		s.UEIDs = nil
		return nil
	})
}

// SEID implements [nl.Control].
func (f *Fake) SEID(ctx context.Context) (nl.SEID, error) {
	return get(f, ctx, func(s *State) nl.SEID { return s.SEID })
}

// SetSEID implements [nl.Control].
func (f *Fake) SetSEID(ctx context.Context, enabled bool) error {
	return f.change(ctx, func(s *State) error {
		switch {
		case s.SEID.Value == "":
			return nl.ErrNotSupported
		case !enabled && len(s.UEIDs) == 0:
			return syscall.ENOENT
		}
		s.SEID.Enabled = enabled
		return nil
	})
}

// HSLimitation implements [nl.Control].
func (f *Fake) HSLimitation(ctx context.Context) (bool, error) {
	return get(f, ctx, func(s *State) bool { return s.HSLimitation })
}

// SetHSLimitation implements [nl.Control].
func (f *Fake) SetHSLimitation(ctx context.Context, enabled bool) error {
	return f.change(ctx, func(s *State) error {
		s.HSLimitation = enabled
		return nil
	})
}

// DeleteLink implements [nl.Control].
func (f *Fake) DeleteLink(ctx context.Context, group nl.LinkGroupID, link uint8) error {
	return f.change(ctx, func(s *State) error {
		is := func(l nl.Link) bool { return l.LinkGroup>>8 == group>>8 && l.ID == link }
		switch i := slices.IndexFunc(s.Links, is); {
		case i < 0:
			return fmt.Errorf("no link %d of link group %s: %w", link, group, syscall.ENOENT)
		case !slices.ContainsFunc(s.Links, func(l nl.Link) bool { return l.LinkGroup>>8 == group>>8 && l.ID != link }):
			return fmt.Errorf("the last link: %w", syscall.EBUSY)
		default:
			s.Links = slices.Delete(slices.Clone(s.Links), i, i+1)
		}
		return nil
	})
}

// DeleteLinkGroup implements [nl.Control].
func (f *Fake) DeleteLinkGroup(ctx context.Context, group nl.LinkGroupID) error {
	return f.change(ctx, func(s *State) error {
		left := slices.DeleteFunc(slices.Clone(s.LinkGroups), func(g nl.LinkGroup) bool { return g.ID>>8 == group>>8 })
		if len(left) == len(s.LinkGroups) {
			return fmt.Errorf("no link group %s: %w", group, syscall.ENOENT)
		}
		s.LinkGroups = left
		s.Links = slices.DeleteFunc(slices.Clone(s.Links), func(l nl.Link) bool { return l.LinkGroup>>8 == group>>8 })
		return nil
	})
}

// Trace implements [nl.Control]. There is one trace at a time.
func (f *Fake) Trace(ctx context.Context, r nl.TraceRequest) (t nl.Trace, err error) {
	err = f.change(ctx, func(s *State) error {
		switch {
		case r.ID == 0 && !r.End:
			if r.Types == 0 {
				return syscall.EINVAL
			}
			f.traces++
			t = nl.Trace{ID: uint32(f.traces), Conns: s.TraceConns}
			return nil
		case f.traces == 0 || r.ID != uint32(f.traces):
			return fmt.Errorf("trace %d has ended: %w", r.ID, syscall.ENOENT)
		}
		t = nl.Trace{ID: r.ID, Events: s.TraceEvents}
		if s.TraceEvents = nil; r.End {
			f.traces = 0
		}
		return nil
	})
	return t, err
}

// Attachments implements [nl.Attacher].
func (f *Fake) Attachments(ctx context.Context) ([]nl.Attachment, error) {
	return get(f, ctx, func(s *State) []nl.Attachment { return slices.Clone(s.Attachments) })
}

// Learnt implements [nl.Learner].
func (f *Fake) Learnt(ctx context.Context) ([]nl.Learnt, error) {
	return get(f, ctx, func(s *State) []nl.Learnt { return slices.Clone(s.Learnt) })
}

// Attach implements [nl.Attacher].
func (f *Fake) Attach(ctx context.Context, a nl.Attachment) error {
	return f.change(ctx, func(s *State) error {
		if path.Clean("/"+a.Path) != a.Path || !a.Connect && !a.Accept {
			return fmt.Errorf("cgroup %q: %w", a.Path, os.ErrInvalid)
		}
		a := nl.Attachment{Path: a.Path, UID: a.UID, Connect: a.Connect, Accept: a.Accept, Always: a.Always}
		s.Attachments = append(without(s.Attachments, a.Path), a)
		return nil
	})
}

// Detach implements [nl.Attacher].
func (f *Fake) Detach(ctx context.Context, path string) error {
	return f.change(ctx, func(s *State) error {
		left := without(s.Attachments, path)
		if len(left) == len(s.Attachments) {
			return fmt.Errorf("cgroup %q: %w", path, syscall.ENOENT)
		}
		s.Attachments = left
		return nil
	})
}

// Enter implements [nl.Attacher].
func (f *Fake) Enter(ctx context.Context, who nl.Peer, always bool) (a nl.Attachment, err error) {
	err = f.change(ctx, func(s *State) error {
		a = nl.Attachment{Path: fmt.Sprintf("/run-%d", who.PID), UID: who.UID, Run: true, Connect: true, Accept: true, Always: always}
		s.Attachments = append(without(s.Attachments, a.Path), a)
		return nil
	})
	return a, err
}

// Listen implements [nl.Attacher].
func (f *Fake) Listen(ctx context.Context, who nl.Peer, fds []int) error {
	return f.change(ctx, func(*State) error {
		for _, fd := range fds {
			if v, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || v == 0 {
				return fmt.Errorf("descriptor %d: %w", fd, syscall.EINVAL)
			}
		}
		f.listening += len(fds)
		return nil
	})
}

// Listening returns how many listening sockets were handed over.
func (f *Fake) Listening() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listening
}

// without returns the attachments of all cgroups but one.
func without(all []nl.Attachment, path string) []nl.Attachment {
	return slices.DeleteFunc(slices.Clone(all), func(a nl.Attachment) bool { return a.Path == path })
}

// PNETs implements [nl.Control].
func (f *Fake) PNETs(ctx context.Context) ([]nl.PNET, error) {
	return get(f, ctx, func(*State) []nl.PNET { return f.pnets.Entries() })
}

// AddPNET implements [nl.Control].
func (f *Fake) AddPNET(ctx context.Context, p nl.PNET) error {
	return f.change(ctx, func(*State) error {
		if p.NetDev != "" && f.netdevs != nil && !slices.Contains(f.netdevs, p.NetDev) {
			return fmt.Errorf("no network device %s: %w", p.NetDev, syscall.ENODEV)
		}
		return f.pnets.Add(p)
	})
}

// RemovePNET implements [nl.Control].
func (f *Fake) RemovePNET(ctx context.Context, id string) error {
	return f.change(ctx, func(*State) error { return f.pnets.Remove(id) })
}

// FlushPNET implements [nl.Control].
func (f *Fake) FlushPNET(ctx context.Context) error {
	return f.change(ctx, func(*State) error {
		f.pnets.Flush()
		return nil
	})
}

// Connections implements [nl.Control].
func (f *Fake) Connections(ctx context.Context) ([]nl.Connection, error) {
	return get(f, ctx, func(s *State) []nl.Connection { return slices.Clone(s.Connections) })
}

// Close implements [nl.Control].
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// SampleState returns a state with rows in every table: two link groups between two
// hosts, one of them with two links, and a connection that became plain TCP.
func SampleState() State {
	gid := func(n byte) smc.GID { return smc.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 15: n} }
	return State{
		SysInfo: nl.SysInfo{
			Version: 2, Release: 1, SMCRv2: true, LocalHost: "host-a",
			Stack: "smcr", StackVersion: "0.1.0", PID: 4711, UID: 0, RoCEv1: true, RoCEv2: true, StateFile: "/run/smcr/state-1.yaml",
			ConfigFiles: []string{"/etc/smcr/smcr.yaml", "/etc/smcr/smcr.yaml.d/50-services.yaml"},
		},
		LinkGroups: []nl.LinkGroup{
			{
				ID: 0x00000100, Role: smc.Server, Type: smc.GroupSymmetric, PNETID: "NET1", Conns: 3,
				NetCookie: 1, Sndbuf: 3 << 16, RMB: 3 << 16, Links: 2,
				V2:     &nl.V2Common{Version: 2, Release: 1, OS: smc.OSLinux, EID: "SMCV2-EXAMPLE-UEID", PeerHost: "host-b"},
				V2R:    &nl.V2R{Direct: true, MaxConns: 255, MaxLinks: 2},
				PeerID: [8]byte{0x12, 0x34, 0x02, 0, 0, 0, 0, 2}, Peer: "10.77.0.2",
			},
			{
				ID: 0x00000200, Role: smc.Client, Type: smc.GroupSingle, VLAN: 300, Conns: 1,
				NetCookie: 1, Sndbuf: 1 << 16, RMB: 1 << 16, Links: 1,
			},
		},
		Links: []nl.Link{
			{
				LinkGroup: 0x00000100, Role: smc.Server, Type: smc.GroupSymmetric, ID: 1, IBDev: "srx_eth0", IBPort: 1,
				GID: gid(1), PeerGID: gid(2), Conns: 2, NetDev: 2, UID: nl.LinkUID{0, 0, 1, 1}, PeerUID: nl.LinkUID{0, 0, 2, 1},
				State: smc.LinkActive, QPN: 17, PeerQPN: 18, MTU: 1024, Resent: &nl.Resent{Packets: 1200, Timeouts: 4},
			},
			{
				LinkGroup: 0x00000100, Role: smc.Server, Type: smc.GroupSymmetric, ID: 2, IBDev: "mlx5_0", IBPort: 1,
				GID: gid(3), PeerGID: gid(4), Conns: 1, NetDev: 3, UID: nl.LinkUID{0, 0, 1, 2}, PeerUID: nl.LinkUID{0, 0, 2, 2},
				State: smc.LinkActivating, QPN: 19, PeerQPN: 20, MTU: 4096,
			},
			{
				LinkGroup: 0x00000200, Role: smc.Client, Type: smc.GroupSingle, ID: 1, IBDev: "srx_eth0", IBPort: 1,
				GID: gid(1), PeerGID: gid(9), Conns: 1, NetDev: 2, UID: nl.LinkUID{0, 0, 3, 1}, PeerUID: nl.LinkUID{0, 0, 4, 1},
				State: smc.LinkActive, QPN: 21, PeerQPN: 22, MTU: 1024, Resent: &nl.Resent{},
			},
		},
		Devices: []nl.Device{
			{
				Name: "srx_eth0", UseCount: 2, Critical: true, Provider: "softroce", Refused: nl.Refused{Source: 1 << 24, PSN: 2, Key: 1}, Resent: &nl.Resent{Packets: 1234, Timeouts: 5},
				Ports: []nl.Port{{PNETUser: true, PNETID: "NET1", NetDev: 2, Active: true, Valid: true, Links: 2, GID: gid(1), MTU: 1024}},
			},
			{
				Name: "mlx5_0", UseCount: 1,
				PCI: &nl.PCI{FID: 0x10, CHID: 0x1d9, Vendor: 0x15b3, Device: 0x1016, ID: "0001:00:00.0"},
				Ports: []nl.Port{
					{PNETID: "NET1", NetDev: 3, Active: true, Valid: true, Links: 1},
					{NetDev: 4, Valid: true},
				},
			},
		},
		Stats: nl.Stats{
			SMCR: stats.Tech{
				TXBufSizes: stats.Histogram{3: 4}, RXBufSizes: stats.Histogram{3: 4},
				TXSizes: stats.Histogram{0: 1000, 4: 7}, RXSizes: stats.Histogram{0: 900, 3: 318},
				TXBufs:   stats.Buffers{Reuse: 1, Alloc: 3, FullPeer: 2},
				RXBufs:   stats.Buffers{Reuse: 1, Alloc: 3, Full: 7},
				ClientV2: 3, ServerV1: 1, NoDelay: 2,
				RXBytes: 20840708, TXBytes: 196633, RXCalls: 1255, TXCalls: 1007, RXUsage: 196608, TXUsage: 196608,
			},
			Failovers:             2,
			ClientHandshakeTimes:  stats.Times{Counts: [stats.TimeBuckets]uint64{3: 2, 4: 1}, Sum: 14_500_000},
			ServerHandshakeTimes:  stats.Times{Counts: [stats.TimeBuckets]uint64{2: 1}, Sum: 2_100_000},
			Engine:                stats.Engine{Threads: 2, CPU: 3_250_000_000, Rounds: 123_456, Sleeps: 2345},
			ClientHandshakeErrors: 1,
		},
		Fallbacks: nl.Fallbacks{
			ClientTotal: 5, ServerTotal: 2,
			Reasons: []nl.Fallback{
				{Side: smc.Client, Reason: 0x03030001, Count: 4},
				{Side: smc.Client, Reason: 0x02010000, Count: 1},
				{Side: smc.Server, Reason: 0x05000000, Count: 2},
			},
			PeerReasons: []nl.Fallback{{Side: smc.Server, Reason: 0x03030002, Count: 1}, {Side: smc.Server, Count: 1}},
		},
		UEIDs: []string{"SMCV2-EXAMPLE-UEID"},
		Connections: []nl.Connection{
			{
				State: smc.StateListen, Mode: nl.ModeSMCR, Local: netip.MustParseAddrPort("0.0.0.0:5201"), Inode: 1001, PID: 4800, Command: "iperf3",
			},
			{
				State: smc.StateActive, Mode: nl.ModeSMCR,
				Local: netip.MustParseAddrPort("10.77.0.1:5201"), Remote: netip.MustParseAddrPort("10.77.0.2:40000"),
				UID: 1000, Inode: 1002, PID: 4800, Command: "iperf3", LinkGroup: 0x100, TXBytes: 12, RXBytes: 20840000,
				Info: &nl.ConnInfo{
					Token: 0x11223344, Sndbuf: 65536, RMBE: 65536, PeerRMBE: 32768,
					RXProd: nl.Cursor{Wrap: 1, Count: 42}, RXCons: nl.Cursor{Wrap: 1, Count: 40}, TXProd: nl.Cursor{Count: 12},
					TXPrep: nl.Cursor{Count: 12}, TXSent: nl.Cursor{Count: 12}, TXFin: nl.Cursor{Count: 12},
				},
				Link: &nl.ConnLink{LinkID: 1, IBDev: "srx_eth0", IBPort: 1, GID: gid(1), PeerGID: gid(2), Role: smc.Server},
			},
			{
				State: smc.StateActive, Mode: nl.ModeTCP,
				Local: netip.MustParseAddrPort("[fd00:77::1]:40002"), Remote: netip.MustParseAddrPort("[fd00:77::2]:443"),
				UID: 1000, Inode: 1003, PID: 4900, Command: "curl", Fallback: nl.ConnFallback{Reason: 0x05000000},
			},
		},
	}
}
