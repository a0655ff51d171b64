// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/containers"
	"smcr/internal/sample"
	"smcr/internal/services"
	"smcr/internal/sysfs"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/network"
)

// A snapshot is what the kernel and the stacks say at one moment.
type snapshot struct {
	at     time.Time
	tcp    []network.TCPInfo
	stacks []*sample.Stack
	rows   []row
	ends   ends
}

// Begin implements sample.Sink.
func (s *snapshot) Begin(st *sample.Stack) {
	// What was read of the same stack before does not count.
	s.rows = slices.DeleteFunc(s.rows, func(r row) bool { return r.stack == st.Name })
	s.stacks = slices.DeleteFunc(s.stacks, func(x *sample.Stack) bool { return x.Name == st.Name })
	s.stacks = append(s.stacks, st)
}

// Connection implements sample.Sink.
func (s *snapshot) Connection(c *nl.Connection) {
	r := row{stack: s.stacks[len(s.stacks)-1].Name, Connection: *c}
	if c.Link != nil {
		r.Link = new(*c.Link)
	}
	s.rows = append(s.rows, r)
}

// End implements sample.Sink.
func (s *snapshot) End() {}

// An environment is where the command asks.
type environment struct {
	procs *procs
	// sockets lists the TCP sockets of this network namespace.
	sockets func(func(network.TCPInfo)) error
	// addresses are those of this network namespace.
	addresses func() map[netip.Addr]bool
	// listens returns where a unit of systemd with sockets listens.
	listens func(ctx context.Context, unit string) ([]netip.AddrPort, error)
	// container and pods return the cgroups of containers.
	container func(ctx context.Context, name string) (string, error)
	pods      func(ctx context.Context, which string) ([]string, error)
	// lookup returns the addresses of a host.
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// enabled returns the cgroups that the configuration attaches as soon as there is a stack.
	enabled func() []nl.Attachment
	uid     uint32
	wait    func(context.Context, time.Duration)
}

func system() *environment {
	return &environment{
		procs: newProcs(), sockets: network.SockDiag{}.EachInfo, addresses: ownAddresses, listens: services.Listens,
		container: containers.Container, pods: containers.Pods,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		enabled: configured, uid: uint32(os.Geteuid()),
		wait: func(ctx context.Context, d time.Duration) {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		},
	}
}

// configured returns what the configuration attaches. A file that cannot be read attaches nothing.
func configured() (all []nl.Attachment) {
	c, err := config.Load(config.DefaultPath)
	if err != nil {
		return nil
	}
	for _, p := range c.Programs {
		all = append(all, nl.Attachment{Path: p.Cgroup, Connect: true, Accept: true})
	}
	return all
}

// ownAddresses returns the addresses of this network namespace.
func ownAddresses() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				own[cmdutil.PlainAddr(ip)] = true
			}
		}
	}
	return own
}

// read takes a snapshot. A stack that cannot be asked is reported and left out: what the kernel
// says about TCP is no less true.
func (o *options) read(ctx context.Context) (*snapshot, error) {
	s := &snapshot{at: time.Now()}
	if err := o.env.sockets(func(t network.TCPInfo) { s.tcp = append(s.tcp, t) }); err != nil {
		return nil, err
	}
	r := sample.Reader{Factory: o.Factory, Sysfs: sysfs.New(sysfs.DefaultRoot)}
	_, err := r.Read(ctx, s)
	if err == nil || errors.Is(err, nl.ErrNoBackend) && o.Backend == "auto" {
		return s, nil
	}
	if ctx.Err() != nil || errors.Is(err, cmdutil.ErrUsage) || errors.Is(err, nl.ErrNoBackend) {
		return nil, err
	}
	if !o.silent {
		o.note("an SMC stack does not answer, so this is what the others and the kernel's TCP say: %s", strings.ReplaceAll(cmdutil.Message(err), "\n", "; "))
	}
	o.silent = true
	return s, nil
}

// gather returns what is known about the sockets that the user asks about.
func (o *options) gather(ctx context.Context) ([]*Facts, error) {
	first, err := o.read(ctx)
	if err != nil {
		return nil, err
	}
	items := join(first.tcp, first.rows)
	own := o.env.addresses()
	first.ends = endsOf(items, own)
	who := &owners{byInode: map[uint64][]int{}, stacks: map[int]bool{}}
	for _, st := range first.stacks {
		if st.Info.PID != 0 {
			who.stacks[int(st.Info.PID)] = true
		}
	}
	o.env.procs.attached = o.attachments(ctx)
	if len(first.stacks) == 0 {
		o.env.procs.attached = o.env.enabled()
	}
	chosen, err := o.choose(ctx, items, own, who)
	if err != nil {
		return nil, err
	}
	l := listeners(items)
	counts := clients(items, l)
	var all []*Facts
	kept := map[any]*Facts{}
	for _, it := range chosen {
		f := o.facts(it, first, own, who)
		if a, ok := l.of(it.own()); ok && !f.listens() {
			f.Accepted = true
		} else if ok {
			f.Clients = counts[a]
		}
		if link := f.Conn.Link; link != nil && link.Role == smc.Server {
			f.Accepted = true
		}
		all, kept[it.key()] = append(all, f), f
	}
	sortFacts(all)
	if o.interval <= 0 || !slices.ContainsFunc(all, func(f *Facts) bool { return f.Traffic != nil || f.Resent != nil }) {
		return all, nil
	}
	progress := o.IO.Progress(fmt.Sprintf("measuring for %v", o.interval))
	o.env.wait(ctx, o.interval)
	progress.Stop()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	second, err := o.read(ctx)
	if err != nil {
		return nil, err
	}
	again := join(second.tcp, second.rows)
	for i := range again {
		if f := kept[again[i].key()]; f != nil {
			t, r := counters(&again[i], second)
			f.measure(t, r, second.at.Sub(first.at))
		}
	}
	return all, nil
}

// attachments returns the attached cgroups of all stacks that have some.
func (o *options) attachments(ctx context.Context) (all []nl.Attachment) {
	// A stack that does not answer was reported before.
	_ = o.With(ctx, func(ctx context.Context, m nl.Multi) error {
		for _, b := range m {
			if a, err := nl.AttacherOf(b.Control); err == nil {
				some, _ := a.Attachments(ctx)
				all = append(all, some...)
			}
		}
		return nil
	})
	return all
}

// counters returns what was counted of a socket.
func counters(it *item, s *snapshot) (t *Traffic, r *Resent) {
	c := it.conn()
	switch {
	case c.State == smc.StateListen:
	case it.carried() && it.row.Mode == nl.ModeSMCR:
		if it.row.stack != kernel { // which does not count the bytes of a connection
			t = &Traffic{Sent: c.TXBytes, Received: c.RXBytes}
		}
		if l := s.link(it.row); l != nil && l.Resent != nil {
			r = &Resent{N: l.Resent.Packets, Link: l.ID}
		} else if d := s.device(it.row); d != nil && d.Resent != nil {
			r = &Resent{N: d.Resent.Packets, Device: d.Name}
		}
	case !it.carried() && it.tcp != nil && it.tcp.Counted:
		t, r = &Traffic{Sent: it.tcp.Sent, Received: it.tcp.Received}, &Resent{N: it.tcp.Retransmits}
	}
	return t, r
}

// measure adds what was counted a time later.
func (f *Facts) measure(t *Traffic, r *Resent, elapsed time.Duration) {
	if t != nil && f.Traffic != nil {
		t.Time, t.NewSent, t.NewReceived = elapsed, sample.Since(f.Traffic.Sent, t.Sent), sample.Since(f.Traffic.Received, t.Received)
		f.Traffic = t
	}
	if r != nil && f.Resent != nil && r.Device == f.Resent.Device && r.Link == f.Resent.Link {
		r.New, r.Time = sample.Since(f.Resent.N, r.N), elapsed
		f.Resent = r
	}
}

// link returns the link of a connection over SMC-R, or nil.
func (s *snapshot) link(r *row) *nl.Link {
	for _, st := range s.stacks {
		for i := range st.Links {
			if l := &st.Links[i]; st.Name == r.stack && r.Link != nil && l.LinkGroup == r.LinkGroup && l.ID == r.Link.LinkID {
				return l
			}
		}
	}
	return nil
}

// device returns the device of a connection over SMC-R, or nil.
func (s *snapshot) device(r *row) *nl.Device {
	for _, st := range s.stacks {
		for i := range st.Devices {
			if d := &st.Devices[i]; st.Name == r.stack && r.Link != nil && d.Name == r.Link.IBDev {
				return d
			}
		}
	}
	return nil
}

// facts returns what is known about one socket.
func (o *options) facts(it *item, s *snapshot, own map[netip.Addr]bool, w *owners) *Facts {
	f := &Facts{Conn: *it.conn(), UID: o.env.uid}
	f.Traffic, f.Resent = counters(it, s)
	for _, st := range s.stacks {
		f.KernelStack = f.KernelStack || st.Name == kernel
		f.UserStack = f.UserStack || st.Name != kernel
		f.NoWire = cmp.Or(f.NoWire, st.Info.NoWire)
	}
	if it.row != nil {
		f.Stack = it.row.stack
		if d := s.device(it.row); d != nil {
			f.Software = d.SoftwareRoCE()
		}
	}
	if remote := cmdutil.PlainAddr(f.Conn.Remote.Addr()); f.Conn.Remote.IsValid() && (remote.IsLoopback() || own[remote]) {
		f.Here = s.ends.here(it.own())
		f.Translated = !f.Here
	}
	if pids := w.of(it); len(pids) > 0 {
		f.Process, f.More = o.env.procs.process(pids[0]), len(pids)-1
		if f.Process != nil {
			f.Process.IsStack = w.stacks[f.Process.PID]
		}
	}
	return f
}
