// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/internal/testing/testkind"
)

// runDir is where iproute2 and vishvananda/netns keep named namespaces.
const runDir = "/run/netns"

// prefix starts the name of each namespace made here.
const prefix = "smcr-"

// Options describes the links of a Pair. The zero value is one veth pair with
// the kernel's default MTU of 1500 bytes.
type Options struct {
	// MTU of each link in bytes; 0 leaves the kernel's default.
	MTU int
	// Links is the number of parallel veth pairs; 0 means 1.
	Links int
	// OneMachine makes the stacks of both hosts take each other for stacks of one
	// machine, like those of two containers. Otherwise they do not.
	OneMachine bool
}

// Link is one host's end of a veth pair, with the default offloads of the kernel.
type Link struct {
	// Name of the network device: eth0, eth1, …
	Name string
	// MAC is the device's hardware address.
	MAC net.HardwareAddr
	// IPv4 is the address in 10.77.N.0/24. N is the number of the link.
	IPv4 netip.Addr
	// IPv6 is the address in fd77:0:0:N::/64. It can be used at once: there is no
	// duplicate address detection.
	IPv6 netip.Addr
}

// Host is one network namespace.
type Host struct {
	// Name of the namespace as `ip netns` lists it.
	Name string
	// Links are the host's ends of the veth pairs, in order. Never empty.
	Links []Link

	machine string // see Options.OneMachine

	mu    sync.Mutex
	procs map[*Process]struct{}
}

// Path returns the file which setns(2) and nsenter --net take.
func (h *Host) Path() string { return filepath.Join(runDir, h.Name) }

// Addr returns the IPv4 address of the host's first link.
func (h *Host) Addr() string { return h.Links[0].IPv4.String() }

// Addr6 returns the IPv6 address of the host's first link.
func (h *Host) Addr6() string { return h.Links[0].IPv6.String() }

// Pair is two hosts joined by veth pairs.
type Pair struct {
	A, B *Host
}

// sequence gives numbers to the pairs of this process.
type sequence struct{ n atomic.Int64 }

// pairs is global because the names of namespaces are unique on the machine.
var pairs sequence

// New returns a Pair that is closed at the end of the test. Without the privilege, the
// test is skipped or fails, see Require.
func New(t testing.TB, o Options) *Pair {
	t.Helper()
	Require(t, "nsenter")
	p, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	made := *p // a test may put other hosts into p
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Create returns a new Pair outside a test. The caller closes it. Create first removes
// the namespaces of processes that were killed.
func Create(o Options) (*Pair, error) {
	if err := RemoveStale(); err != nil {
		return nil, err
	}
	if o.Links <= 0 {
		o.Links = 1
	}
	base := fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), pairs.n.Add(1))
	p := &Pair{A: newHost(base + "-a"), B: newHost(base + "-b")}
	if o.OneMachine {
		p.A.machine, p.B.machine = base, base
	}
	if err := p.create(o); err != nil {
		return nil, errors.Join(fmt.Errorf("netnstest: %w", err), p.Close())
	}
	return p, nil
}

func newHost(name string) *Host {
	return &Host{Name: name, machine: name, procs: make(map[*Process]struct{})}
}

func (p *Pair) create(o Options) error {
	for _, h := range []*Host{p.A, p.B} {
		if err := h.create(); err != nil {
			return err
		}
	}
	for i := range o.Links {
		if err := p.addLink(i, o.MTU); err != nil {
			return fmt.Errorf("link %d: %w", i, err)
		}
	}
	for _, h := range []*Host{p.A, p.B} {
		if err := h.awaitAddresses(); err != nil {
			return err
		}
	}
	return nil
}

// addressTime bounds the wait of awaitAddresses.
const addressTime = 30 * time.Second

// awaitAddresses waits until the host reaches its own IPv6 addresses. The kernel adds their
// routes in a work queue, some time after the link is up. Without its route, an address is
// looked for on the link, where nobody has it.
func (h *Host) awaitAddresses() error {
	return h.Do(func() error {
		for _, l := range h.Links {
			if err := Until(addressTime, func() error {
				routes, err := netlink.RouteGet(l.IPv6.AsSlice())
				if err == nil && (len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL) {
					err = fmt.Errorf("%s is not local: %v", l.IPv6, routes)
				}
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// shareRunDir makes the directory of named namespaces a mount that is shared with other mount
// namespaces, as `ip netns add` does. If that command came later, it would cover the names that
// are there, and nobody could delete them any more.
func shareRunDir() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(runDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	share := func() error { return unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // no mount yet
		if err = unix.Mount(runDir, runDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	return os.NewSyscallError("mount "+runDir, err)
}

// create makes the namespace on a thread that ends afterwards.
func (h *Host) create() error {
	return onThread(func() error {
		if err := shareRunDir(); err != nil {
			return err
		}
		ns, err := netns.NewNamed(h.Name)
		if err != nil {
			return fmt.Errorf("create namespace %s: %w", h.Name, err)
		}
		defer ns.Close()
		// Link-local addresses must be usable at once too.
		for _, who := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+who+"/accept_dad", []byte("0"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("switch off duplicate address detection: %w", err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
}

// firstIndex is the number that the kernel has for the first link of host A.
const firstIndex = 100

func (p *Pair) addLink(i, mtu int) error {
	a, err := netns.GetFromName(p.A.Name)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := netns.GetFromName(p.B.Name)
	if err != nil {
		return err
	}
	defer b.Close()
	ha, err := netlink.NewHandleAt(a, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer ha.Close()
	hb, err := netlink.NewHandleAt(b, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer hb.Close()

	name := "eth" + strconv.Itoa(i)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	// Not the number of the peer, which is small. The kernel takes a netdev with the number of its
	// peer for one without a peer. It then waits a second before it says that the link is up, and
	// until then there is no IPv6.
	attrs.Index = firstIndex + i
	// Both ends are created in their namespaces and are never visible in that of this
	// process.
	err = ha.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(int(b)), PeerMTU: uint32(mtu)})
	if err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	for n, end := range []struct {
		h    *Host
		conn *netlink.Handle
	}{{p.A, ha}, {p.B, hb}} {
		if err := end.h.setUp(end.conn, name, i, n+1, 24); err != nil {
			return err
		}
	}
	return nil
}

// setUp gives the host's new netdev the addresses with the given numbers, in the network
// that conn speaks to, sets it up, and adds it to the host's links. bits is the length of
// the IPv4 prefix.
func (h *Host) setUp(conn *netlink.Handle, name string, link, host, bits int) error {
	l, err := conn.LinkByName(name)
	if err != nil {
		return err
	}
	end := Link{
		Name: name,
		MAC:  l.Attrs().HardwareAddr,
		IPv4: netip.AddrFrom4([4]byte{10, 77, byte(link), byte(host)}),
		IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: byte(link), 15: byte(host)}),
	}
	for _, addr := range []struct {
		ip   netip.Addr
		bits int
	}{{end.IPv4, bits}, {end.IPv6, 64}} {
		ipnet := &net.IPNet{IP: addr.ip.AsSlice(), Mask: net.CIDRMask(addr.bits, addr.ip.BitLen())}
		na := &netlink.Addr{IPNet: ipnet}
		if addr.ip.Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := conn.AddrAdd(l, na); err != nil {
			return fmt.Errorf("add address %s: %w", addr.ip, err)
		}
	}
	if err := conn.LinkSetUp(l); err != nil {
		return err
	}
	h.Links = append(h.Links, end)
	return nil
}

// Close ends every process in both namespaces and removes the namespaces. It works in any
// state of the Pair, and may be called twice.
func (p *Pair) Close() error {
	return errors.Join(p.A.close(), p.B.close())
}

func (h *Host) close() error {
	h.mu.Lock()
	procs := make([]*Process, 0, len(h.procs))
	for pr := range h.procs {
		procs = append(procs, pr)
	}
	h.mu.Unlock()
	for _, pr := range procs {
		pr.Kill()
	}
	// While it is open, no other namespace gets its number, after which files of the stack are named.
	if ns, err := netns.GetFromName(h.Name); err == nil {
		defer ns.Close()
	}
	var dir string // of the stack's sockets
	if err := h.Do(func() (err error) {
		dir, err = place.Dir()
		return err
	}); err != nil {
		dir = "" // the namespace does not exist
	}
	err := remove(h.Name)
	if dir != "" {
		err = errors.Join(err, os.RemoveAll(dir))
		// What commands have changed: a later stack would remove it.
		state := filepath.Join(filepath.Dir(dir), "state-"+filepath.Base(dir)+".yaml")
		if rerr := os.Remove(state); !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// Do runs f on a thread inside the host's network namespace and returns its error. The
// thread is not used again, so f may change it. Sockets that f opens stay in the
// namespace wherever they are used. Goroutines that f starts are not in the namespace.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromName(h.Name)
		if err != nil {
			return fmt.Errorf("netnstest: open namespace %s: %w", h.Name, err)
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("netnstest: enter namespace %s: %w", h.Name, err)
		}
		return f()
	})
}

// SetLink sets the i-th link of the host up or down.
func (h *Host) SetLink(i int, up bool) error {
	return h.Do(func() error {
		l, err := netlink.LinkByName(h.Links[i].Name)
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// onThread runs f on a new thread that ends with f, because its goroutine returns without
// unlocking it.
func onThread(f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer close(errc) // also when f ends the goroutine (t.FailNow)
		errc <- f()
	}()
	err, ok := <-errc
	if !ok {
		return errors.New("netnstest: the function ended its goroutine")
	}
	return err
}

// Require skips the test if it is not run by root or if one of the programs tools is
// missing. If CI=true is set in the environment, the test fails instead, so that tests
// are not skipped unnoticed.
func Require(t testing.TB, tools ...string) {
	t.Helper()
	testkind.System(t)
	if os.Geteuid() != 0 {
		missing(t)("needs root for network namespaces: run `sudo make test`")
	}
	RequireTools(t, tools...)
}

// RequireTools is Require for a test that does not need root.
func RequireTools(t testing.TB, tools ...string) {
	t.Helper()
	testkind.System(t)
	for _, tool := range tools {
		if _, err := lookPath(tool); err != nil {
			missing(t)("needs %s: run `sudo scripts/setup-test-tools`", tool)
		}
	}
}

// missing returns the method of t for a test that cannot run here.
func missing(t testing.TB) func(format string, args ...any) {
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
		return t.Fatalf
	}
	return t.Skipf
}

// RemoveStale removes the namespaces of processes that do not exist any more, with the
// processes in these namespaces. Create calls it.
func RemoveStale() error {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("netnstest: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if pid, ok := owner(e.Name()); ok && !alive(pid) {
			errs = append(errs, remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// owner returns the process ID in the name of a namespace of Create.
func owner(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	fields := strings.Split(rest, "-")
	if len(fields) != 3 {
		return 0, false
	}
	pid, err := strconv.Atoi(fields[0])
	return pid, err == nil && pid > 0
}

func alive(pid int) bool {
	err := unix.Kill(pid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}
