// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/quota"
)

// nowhere is an address of which host A knows the neighbour, and that does not answer.
func (b *bed) nowhere(i int) netip.AddrPort {
	a := netip.MustParseAddr(b.B.Addr()).As4()
	a[3] = 200
	at := netip.AddrFrom4(a)
	b.must(b.A.Command(b.t.Context(), "ip", "neigh", "replace", at.String(), "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", b.A.Links[0].Name).Run())
	return netip.AddrPortFrom(at, uint16(i))
}

// announce has a user of A connect to an address from where nothing comes. The connection waits until the test ends, or the
// descriptor is closed.
func (b *bed) announce(uid int, to netip.AddrPort) (fd int) {
	b.t.Helper()
	b.must(b.A.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Fchown(fd, uid, -1); err != nil {
			return err
		}
		return ignored(unix.Connect(fd, sockaddr(to, 0)), unix.EINPROGRESS)
	}))
	return fd
}

// fillTable has a user connect until no more is announced, and returns how many were. The sockets are closed at the end of the test.
func (b *bed) fillTable(uid int, most int) (n int) {
	b.t.Helper()
	var fds []int
	b.t.Cleanup(func() { closeAll(fds) })
	to := b.nowhere(9)
	for n < most {
		was := b.d[0].halfOpen()
		fds = append(fds, b.announce(uid, to))
		if b.d[0].halfOpen() == was {
			break
		}
		n++
	}
	return n
}

// chowned has sockets be those of a user.
func chowned(uid int) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchown(int(fd), uid, -1) }); cerr != nil {
			return cerr
		}
		return err
	}
}

func chownedListener(l net.Listener, uid int) error {
	rc, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return err
	}
	return chowned(uid)("", "", rc)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// TestSharesOfUsers has many users who connect to hosts that never answer, as often as they can: each further one still gets in, and so
// does a connection that is answered.
func TestSharesOfUsers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const flows = 128 // 8 of them for those who have few
	b := newBedWith(t, splice, func(c *Config) { c.Flows = flows })
	if n := b.fillTable(0, flows); n != flows*15/16/2 {
		t.Errorf("root has announced %d, want half of what it may have", n)
	}
	all := flows * 15 / 16 / 2
	for i := range 10 {
		n := b.fillTable(50000+i, flows)
		if n == 0 {
			t.Errorf("user %d gets nothing", i)
		}
		if all += n; i > 1 && n > (flows-all+n)/2 {
			t.Errorf("user %d has announced %d, with %d in all", i, n, all)
		}
	}
	l := b.listen(b.B.Addr())
	b.connect(l) // of root, of whom as many wait as may
	b.wantTaken(0, 0)
	b.control = chowned(60000)
	client, server := b.connect(l)
	b.wantTaken(1, 1)
	b.exchanges(client, server)
}

// TestSharesOfMany has so many users that a few places for each are more than there are.
func TestSharesOfMany(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const flows = 64
	b := newBedWith(t, splice, func(c *Config) { c.Flows = flows })
	users := 0
	for ; users < flows && b.d[0].halfOpen() < flows; users++ {
		if n := b.fillTable(50000+users, flows); n == 0 {
			t.Fatalf("user %d gets nothing, and %d of %d places are taken", users, b.d[0].halfOpen(), flows)
		}
	}
	if last := flows / 16; users < last {
		t.Errorf("%d users fill the table, want %d at least", users, last)
	}
	client, server := b.connect(b.listen(b.B.Addr())) // there is no place: TCP
	b.wantTaken(0, 0)
	b.exchanges(client, server)
}

// TestSharesOfSubordinates has a user who becomes others: they have one share.
func TestSharesOfSubordinates(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const perUser = 8
	b := newBedWith(t, splice, func(c *Config) {
		c.PerUser, c.Subordinates = perUser, func() []quota.IDs { return []quota.IDs{{First: 100001, Last: 165536, Owner: 60001}} }
	})
	for i, uid := range []int{60001, 100001, 165536, 131072} {
		n := b.fillTable(uid, perUser)
		if want := map[int]int{0: perUser / 2}[i]; n != want {
			t.Errorf("user %d has announced %d, want %d", uid, n, want)
		}
	}
	for _, uid := range []int{100000, 165537} {
		if n := b.fillTable(uid, perUser); n != perUser/2 {
			t.Errorf("user %d has announced %d, want %d", uid, n, perUser/2)
		}
	}
	// What is only announced leaves room for what is answered.
	b.control = chowned(100005)
	l := b.listen(b.B.Addr())
	b.connect(l)
	b.wantTaken(0, 0) // all that may wait for an answer do
}

// TestAnnouncedApart has a user whose listening sockets are flooded with handshakes that nobody ends: the user still connects. And the
// other way around.
func TestAnnouncedApart(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const perUser = 8
	b := newBedWith(t, splice, func(c *Config) { c.PerUser = perUser })
	const uid = 60002
	b.control = chowned(uid)
	if n := b.fillTable(uid, perUser); n != perUser/2 {
		t.Errorf("the user has announced %d, want %d", n, perUser/2)
	}
	back := &bed{Pair: &netnstest.Pair{A: b.B, B: b.A}, t: t, control: chowned(60003)}
	back.d[0], back.d[1] = b.d[1], b.d[0]
	l := back.listen(b.A.Addr())
	b.must(chownedListener(l, uid))
	client, server := back.connect(l)
	b.wantTaken(1, 1)
	b.exchanges(client, server)
}

// TestClosedEarly has a user who closes sockets whose SYN was announced: the places are free long before a handshake would end, but for
// a few, and those of sockets that still wait are kept.
func TestClosedEarly(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	to := b.nowhere(9)
	const others = 10
	var kept []int
	for range others {
		kept = append(kept, b.announce(60000, to))
	}
	defer closeAll(kept)
	for range 2 * waitingMost {
		unix.Close(b.announce(60001, to))
	}
	testkind.Eventually(t, "what still waits is left, and few others", func() (any, bool) {
		n := map[uint32]int{}
		var key bpfTuple
		var k bpfFlow
		for all := b.d[0].bpf.Flows.Iterate(); all.Next(&key, &k); {
			n[k.Uid]++
		}
		return n, n[60000] == others && n[60001] < waitingMost
	})
	b.connect(b.listen(b.B.Addr()))
	b.wantTaken(1, 1)
}

// TestUsersForgotten: who can become many users fills no table with them.
func TestUsersForgotten(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	for uid := range 5 {
		b.control = chowned(50000 + uid)
		client, server := b.connect(l)
		b.exchanges(client, server)
		client.Close()
		server.Close()
	}
	b.gone()
	b.d[0].expire()
	var uid uint32
	var n bpfCount
	for _, m := range []*ebpf.Map{b.d[0].bpf.Users, b.d[0].bpf.Removed} {
		for all := m.Iterate(); all.Next(&uid, &n); {
			t.Errorf("user %d is remembered: %v", uid, n)
		}
	}
	b.connect(l)
	b.wantTaken(6, 6)
}

// TestPrefixes: the keys of a range stand for it, and for nothing else.
func TestPrefixes(t *testing.T) {
	for _, ids := range []quota.IDs{{First: 1, Last: 1}, {First: 100000, Last: 165535}, {First: 1, Last: 1<<32 - 2}, {First: 65536, Last: 131071}, {First: 7, Last: 9}} {
		all := prefixes(ids)
		in := func(uid uint32) (n int) {
			for k := range all {
				var b [4]byte
				binary.NativeEndian.PutUint32(b[:], k.Uid)
				if (uint64(binary.BigEndian.Uint32(b[:]))^uint64(uid))>>(32-k.Bits) == 0 {
					n++
				}
			}
			return n
		}
		for _, uid := range []uint32{ids.First, ids.Last, ids.First + (ids.Last-ids.First)/2} {
			if in(uid) != 1 {
				t.Errorf("%v: user %d is in %d keys", ids, uid, in(uid))
			}
		}
		if in(ids.First-1)+in(ids.Last+1) != 0 {
			t.Errorf("%v: the keys have more", ids)
		}
		if len(all) > 62 {
			t.Errorf("%v: %d keys", ids, len(all))
		}
	}
}
