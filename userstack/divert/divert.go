// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"

	"smcr/guard"
	"smcr/quota"
	"smcr/smc"
)

// Config is what a Diverter is made with.
type Config struct {
	// Handle is called for each connection of which both ends announce SMC, one after the other. It must not wait. It has somebody
	// talk with the peer over [Flow.Outer], and then call one of [Flow.Split] and [Flow.Reset], and handled. The context ends when the
	// Diverter is closed, which waits for handled.
	Handle func(ctx context.Context, f *Flow, handled func())
	// Drained has it begin as after [Diverter.Drain]: another stack still takes the new connections.
	Drained bool
	// Flows bounds the connections that are announced or taken. Beyond it, a connection is TCP. 0 means as many as the
	// process may have files open for, at most 65,536.
	Flows int
	// PerUser bounds those of each user other than root, who may have no more than half of all. 0 means 4096. Half of it may be
	// of clients, and half of servers, that are only announced.
	PerUser int
	// plain, if not 0, is what a user may have in place of userPlain.
	plain int
	// undecided, if not 0, is in place of undecidedMost.
	undecided int
	// types, if not nil, is in place of btf.LoadKernelSpec.
	types func() (*btf.Spec, error)
	// Subordinates returns the users whose connections are charged to another one, as quota.Subordinates does: later there may be more.
	Subordinates func() []quota.IDs
	// Log and Guard are those of the stack. Guard may be nil.
	Log   *slog.Logger
	Guard *guard.Guard
}

// A Diverter stands in the path of the TCP connections of one network namespace. It is safe for
// concurrent use.
type Diverter struct {
	cfg  Config
	host *netlink.Handle
	ns   *namespace
	veth int
	held *heldEnd
	bpf  *bpfObjects
	// undecided counts connections of servers.
	undecided undecided
	sockets   *sockets // for one goroutine
	// neighbours are those of the host.
	neighbours hostNeighbours
	// congestion is the name of the host's control of congestion.
	congestion string
	changes    changes
	changed    atomic.Bool // something that changes reports
	moved      time.Time   // when sweepMoves has looked
	twice      twice
	// id is the handle of its filters, mark that of packets that come from it.
	id, mark uint32

	ctx     context.Context
	stop    context.CancelFunc
	close   sync.Once
	running sync.WaitGroup

	quieting sync.Mutex // by who writes map quiet

	mu      sync.Mutex
	flows   map[Tuple]*Flow
	ending  map[*Flow]time.Time // since when flows are over for both programs, for which the kernel has something to do
	lingers []lingering         // those for which it has nothing more to do, in order
	gone    [2]map[Tuple]*Flow  // those that were forgotten since the last sweep, and since the one before
	given   map[*Flow]*given    // flows that were let go, and have not heard of their programs
	unsure  map[uint64]reset    // by the cookies of sockets that may not have heard
	devices map[int]bool
	earlier map[uint32]earlier // the stacks before this one, by the handle of their filters
	// attached are the cgroups of map cgroups; past is what was counted for others.
	attached map[uint64]bool
	past     map[outcome]uint64
	places   map[bpfPlace]uint32 // map places
	silents  quota.Silents[bpfOrigin]
	known    map[netip.Addr]bpfMet // map hosts
	removed  uint64                // what stateRemoved says
	accounts int                   // how many ranges of users map accounts has
	listened []listened            // the latest one last
	shifted  quota.Tally[uint32]   // connections of users that were let go
	followed bool                  // its programs are at all devices
}

// outcome is of what the sums in Diverter.past are.
type outcome struct {
	side smc.Role
	why  smc.Diagnosis
}

// New makes a Diverter for the network namespace of the calling thread. It needs CAP_NET_ADMIN,
// CAP_SYS_ADMIN and CAP_BPF. Errors wrap a syscall.Errno, or ebpf.ErrNotSupported where the kernel
// lacks something.
func New(cfg Config) (*Diverter, error) {
	d := &Diverter{cfg: cfg, flows: map[Tuple]*Flow{}, ending: map[*Flow]time.Time{}, gone: [2]map[Tuple]*Flow{{}, {}}, given: map[*Flow]*given{}, unsure: map[uint64]reset{}, devices: map[int]bool{}, earlier: map[uint32]earlier{}, attached: map[uint64]bool{}, past: map[outcome]uint64{}, places: map[bpfPlace]uint32{}, known: map[netip.Addr]bpfMet{}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	if err := d.make(); err != nil {
		return nil, errors.Join(err, d.release())
	}
	d.run("held packets", d.readFrames)
	d.run("ends of flows", d.sweep)
	d.run("the addresses of neighbours", d.keepNeighbours)
	d.run("changes of routes", d.watchChanges)
	return d, nil
}

func (d *Diverter) make() (err error) {
	d.congestion = hostCongestion()
	if d.host, err = netlink.NewHandle(); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	if d.neighbours, err = openNeighbours(d.host); err != nil {
		return err
	}
	if d.changes, err = openChanges(); err != nil {
		return err
	}
	if d.sockets, err = openSockets(); err != nil {
		return err
	}
	if d.held, err = newHeldEnd(); err != nil {
		return err
	}
	if d.ns, d.veth, err = newNamespace(d.host, d.held); err != nil {
		return err
	}
	d.id = filterHandle(d.veth)
	hold, err := up(d.host, d.ns.hold)
	if err != nil {
		return err
	}
	// Zero is the mark of everything else.
	d.mark = rand.Uint32() | 1
	all, err := d.filters()
	if err != nil {
		return err
	}
	shared := sharedBy(all)
	for _, m := range shared {
		defer m.Close()
	}
	if d.bpf, err = loadPrograms(d.veth, hold, d.mark, &d.cfg, shared); err != nil {
		return err
	}
	if d.undecided, err = openUndecided(d, d.bpf.Undecided); err != nil {
		return err
	}
	if err := tryRemoveAll(d.bpf.Ways); err != nil {
		return err
	}
	if err := d.bpf.Holder.Put(uint32(0), uint32(hold)); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	if err := errors.Join(d.live(), d.setAccounts()); err != nil {
		return fmt.Errorf("divert: %w", err)
	}
	if err := d.begin(); err != nil {
		return err
	}
	if !d.cfg.Drained {
		if err := d.Resume(); err != nil {
			return err
		}
	}
	if err := attach(d.host, d.veth, ingress, d.id, d.bpf.Sent, "smcr_sent"); err != nil {
		return err
	}
	if err := attach(d.host, hold, ingress, d.id, d.bpf.LetGo, "smcr_let_go"); err != nil {
		return err
	}
	return d.ns.do(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return fmt.Errorf("divert: %w", err)
		}
		defer h.Close()
		return attach(h, d.ns.zone, ingress, d.id, d.bpf.Received, "smcr_received")
	})
}

// run calls f in a goroutine that Close waits for. A panic there ends no more than f.
func (d *Diverter) run(what string, f func()) {
	d.running.Go(d.cfg.Guard.Func(what, f))
}

// AddDevice has the Diverter announce at a device, and take what comes there. The device must have
// Ethernet headers. It may be called again.
func (d *Diverter) AddDevice(index int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// First what takes: nothing is announced that would not be taken.
	if err := attach(d.host, index, ingress, d.id, d.bpf.Arriving, "smcr_arriving"); err != nil {
		return err
	}
	if err := attach(d.host, index, egress, d.id, d.bpf.Leaving, "smcr_leaving"); err != nil {
		return errors.Join(err, detach(d.host, index, ingress, d.id))
	}
	d.devices[index] = true
	d.changed.Store(true) // it may be what connections wait for
	return nil
}

// RemoveDevice is the inverse of AddDevice. Connections that were taken do not go on.
func (d *Diverter) RemoveDevice(index int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.devices, index)
	return errors.Join(detach(d.host, index, egress, d.id), detach(d.host, index, ingress, d.id))
}

// Does says which sockets of a cgroup announce.
type Does struct {
	// Connect and Accept are those that connect, and those that listen.
	Connect, Accept bool
	// Always has them announce also in a silence because of smc.DiagShort.
	Always bool
}

// Attach has the sockets of a cgroup, and of those below it, announce. A socket has the cgroup of the process that
// made it. The number of a cgroup is the inode of its folder. It may be called again.
func (d *Diverter) Attach(cgroup uint64, what Does) error {
	var does uint32
	for bit, set := range map[uint32]bool{connects: what.Connect, accepts: what.Accept, always: what.Always} {
		if set {
			does |= bit
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached[cgroup] = true
	if err := d.bpf.Cgroups.Put(cgroup, does); err != nil {
		return fmt.Errorf("divert: attach cgroup %d: %w", cgroup, err)
	}
	return nil
}

// Detach is the inverse of Attach. Connections that were taken stay.
func (d *Diverter) Detach(cgroup uint64) error {
	if err := ignored(d.bpf.Cgroups.Delete(cgroup), ebpf.ErrKeyNotExist); err != nil {
		return fmt.Errorf("divert: detach cgroup %d: %w", cgroup, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attached, cgroup)
	d.forgetListeners()
	_, err := d.counts()
	return err
}

// A Count is how many connections of the sockets of a cgroup are TCP for one reason, since it was attached.
type Count struct {
	// Cgroup is 0 for all that are not attached any more.
	Cgroup uint64
	// Why is smc.DiagPeerNoSMC if the peer did not announce SMC, smc.DiagCopied if it sends options back,
	// smc.DiagMem if its user has as many connections as it may have, or a server has no room for one more that is undecided, and otherwise what Quiet or SetPlaces was called
	// with. 0 means that the peer refused the connection.
	Why smc.Diagnosis
	// Side is that of this host.
	Side smc.Role
	N    uint64
}

// Counts returns what was counted. A server whose client does not announce SMC counts nothing.
func (d *Diverter) Counts() ([]Count, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, err := d.counts()
	for of, n := range d.past {
		all = append(all, Count{Why: of.why, Side: of.side, N: n})
	}
	return all, err
}

// counts returns what was counted for attached cgroups, and adds what was for others to past. mu is held.
func (d *Diverter) counts() (all []Count, err error) {
	var old []bpfTally
	err = each(d.bpf.Tallies, func(k *bpfTally, n *uint64) {
		if d.attached[k.Cgroup] {
			of := outcomeOf(*k)
			all = append(all, Count{k.Cgroup, of.why, of.side, *n})
			return
		}
		old = append(old, *k)
	})
	for _, k := range old {
		var n uint64
		if d.bpf.Tallies.Lookup(k, &n) == nil && d.bpf.Tallies.Delete(k) == nil {
			d.past[outcomeOf(k)] += n
		}
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

func outcomeOf(k bpfTally) outcome {
	of := outcome{smc.Client, smc.Diagnosis(k.Why)}
	if k.Server != 0 {
		of.side = smc.Server
	}
	return of
}

// Close resets the connections that are left, and ends everything. All are handled then. Later
// calls do nothing.
func (d *Diverter) Close() (err error) {
	d.close.Do(func() {
		d.stop()
		d.mu.Lock()
		left := slices.Collect(maps.Values(d.flows))
		d.mu.Unlock()
		for _, f := range left {
			f.Reset()
		}
		_ = d.held.socket.Close()
		d.neighbours.close()
		d.changes.close()
		d.running.Wait()
		d.lastResets()
		err = d.release()
	})
	return err
}

// release ends what make has made.
func (d *Diverter) release() error {
	var errs []error
	outlived := d.bpf != nil && d.sweepShifts() > 0
	d.mu.Lock()
	for index := range d.devices {
		if !outlived { // or the next stack removes them
			errs = append(errs, detach(d.host, index, egress, d.id), detach(d.host, index, ingress, d.id))
		}
	}
	clear(d.devices)
	for _, e := range d.earlier {
		e.close()
	}
	clear(d.earlier)
	d.mu.Unlock()
	d.neighbours.close()
	d.changes.close()
	d.sockets.close()
	if d.bpf != nil {
		errs = append(errs, d.bpf.Close())
	}
	if d.ns != nil {
		for _, name := range []string{d.ns.hold, d.ns.veth} {
			if link, err := d.host.LinkByName(name); err == nil {
				errs = append(errs, d.host.LinkDel(link))
			}
		}
		d.ns.close()
	}
	if d.held != nil {
		d.held.close()
	}
	if d.host != nil {
		d.host.Close()
	}
	return errors.Join(errs...)
}
