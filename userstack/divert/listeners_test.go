// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// Owners of listening sockets whose cgroups stand for others than that of the test.
var (
	firstOwner  = Owner{Cgroup: 1 << 60, UID: 65533}
	secondOwner = Owner{Cgroup: 1<<60 + 1, UID: 65532}
)

// handedBed is a bed whose server has a listening socket of a cgroup that is not attached, while those of the owners are.
type handedBed struct {
	*bed
	flows chan *Flow // of the server
}

func newHandedBed(t *testing.T, tune func(*Config)) *handedBed {
	t.Helper()
	h := &handedBed{flows: make(chan *Flow, 16)}
	h.bed = newBedWith(t, func(b *bed, f *Flow) {
		if f.Role == smc.Server {
			h.flows <- f
		}
		splice(b, f)
	}, tune)
	h.must(h.d[1].Detach(ownCgroup(t)))
	for _, o := range []Owner{firstOwner, secondOwner} {
		h.must(h.d[1].Attach(o.Cgroup, Does{Connect: true, Accept: true}))
	}
	return h
}

// listen listens on B without MPTCP, which Go has by default.
func (h *handedBed) listen(address string) (l net.Listener) {
	h.t.Helper()
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	h.must(h.B.Do(func() (err error) {
		l, err = c.Listen(h.t.Context(), "tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	h.t.Cleanup(func() { l.Close() })
	return l
}

// hand hands a listening socket over.
func (h *handedBed) hand(l net.Listener, o Owner) {
	h.t.Helper()
	h.must(h.listenErr(l.(*net.TCPListener), o))
}

func (h *handedBed) listenErr(c syscall.Conn, o Owner) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	return errors.Join(rc.Control(func(fd uintptr) { ferr = h.d[1].Listen(int(fd), o) }), ferr)
}

// wantOwner makes a connection, and checks whose it is: that of nobody is TCP.
func (h *handedBed) wantOwner(l net.Listener, o Owner) {
	h.t.Helper()
	client, server := h.connect(l)
	client.Close()
	server.Close()
	var got Owner
	select {
	case f := <-h.flows:
		got = Owner{f.Cgroup, f.UID}
	default:
	}
	if got != o {
		h.t.Errorf("%v: the connection is one of %+v, want %+v", l.Addr(), got, o)
	}
}

// TestListen has listening sockets that were made in a cgroup that is not attached.
func TestListen(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	h := newHandedBed(t, func(*Config) {})
	for _, address := range []string{h.B.Addr(), h.B.Addr6(), ""} {
		l := h.listen(address)
		if address == "" { // a socket of both families
			l = named{l.(*net.TCPListener), h.B.Addr()}
		}
		of := l
		if n, ok := l.(named); ok {
			of = n.TCPListener
		}
		h.wantOwner(l, Owner{})
		h.hand(of, firstOwner)
		h.wantOwner(l, firstOwner)
		h.hand(of, firstOwner)
		h.wantOwner(l, firstOwner)
		h.hand(of, secondOwner)
		h.wantOwner(l, secondOwner)
		h.wantOwner(h.listen(h.B.Addr()), Owner{})
		if known := h.d[1].Listeners(); known[cookieOf(of)] != secondOwner {
			t.Errorf("%+v, want one of %+v", known, secondOwner)
		}
		// The first one is there still.
		h.must(h.d[1].Detach(secondOwner.Cgroup))
		h.wantOwner(l, firstOwner)
		h.must(h.d[1].Detach(firstOwner.Cgroup))
		h.wantOwner(l, Owner{})
		if n := len(h.d[1].Listeners()); n != 0 {
			t.Errorf("%d sockets are known, want none", n)
		}
		if err := h.listenErr(of.(*net.TCPListener), firstOwner); !errors.Is(err, unix.ENOENT) {
			t.Errorf("of a cgroup that is not attached: %v", err)
		}
		for _, o := range []Owner{firstOwner, secondOwner} {
			h.must(h.d[1].Attach(o.Cgroup, Does{Connect: true, Accept: true}))
		}
		h.hand(of, secondOwner)
		h.must(h.d[1].Attach(secondOwner.Cgroup, Does{Connect: true}))
		h.wantOwner(l, Owner{}) // only what it connects
		h.must(h.d[1].Detach(secondOwner.Cgroup))
		h.must(h.d[1].Attach(secondOwner.Cgroup, Does{Connect: true, Accept: true}))
		l.Close()
	}
	h.gone()
}

func cookieOf(l net.Listener) (cookie uint64) {
	if rc, err := l.(*net.TCPListener).SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { cookie, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	}
	return cookie
}

// named is a listening socket with the address at which the test reaches it.
type named struct {
	*net.TCPListener
	host string
}

func (n named) Addr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(n.host), Port: n.TCPListener.Addr().(*net.TCPAddr).Port}
}

// TestListenBound: the connections of a listening socket count to the user of the program, not to who made the socket.
func TestListenBound(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	h := newHandedBed(t, func(c *Config) { c.PerUser = 2 })
	l := h.listen(h.B.Addr())
	h.hand(l, firstOwner)
	for range 4 {
		h.connect(l)
	}
	h.wantTaken(2, 2)
	plain := 0
	for _, s := range h.plains() {
		if s == firstOwner {
			plain++
		}
	}
	if plain != 2 {
		t.Errorf("%d connections are TCP, and those of the program, want 2", plain)
	}
}

// plains returns whose the connections of the server are that are TCP.
func (h *handedBed) plains() (all []Owner) {
	known, err := h.d[1].Plains()
	h.must(err)
	for _, p := range known {
		if p.Why == smc.DiagMem {
			all = append(all, p.Owner)
		}
	}
	return all
}

// TestListenOthers has files that are no listening TCP sockets.
func TestListenOthers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	h := newHandedBed(t, func(*Config) {})
	client, _ := h.connect(h.listen(h.B.Addr()))
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	h.must(err)
	defer udp.Close()
	local, err := net.Listen("unix", t.TempDir()+"/sock")
	h.must(err)
	defer local.Close()
	file, err := os.Open("/dev/null")
	h.must(err)
	defer file.Close()
	for _, c := range []syscall.Conn{client, udp.(*net.UDPConn), local.(*net.UnixListener), file} {
		if err := h.listenErr(c, firstOwner); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%T: %v, want EINVAL", c, err)
		}
	}
	var mptcp net.ListenConfig
	mptcp.SetMultipathTCP(true)
	l, err := mptcp.Listen(t.Context(), "tcp", "127.0.0.1:0")
	h.must(err)
	defer l.Close()
	// A kernel without MPTCP makes another socket.
	if is, err := l.(*net.TCPListener).SyscallConn(); err == nil && protocolOf(is) == unix.IPPROTO_MPTCP {
		if err := h.listenErr(l.(*net.TCPListener), firstOwner); !errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Errorf("MPTCP: %v", err)
		}
	}
	if n := len(h.d[1].Listeners()); n != 0 {
		t.Errorf("%d sockets are known", n)
	}
}

func protocolOf(rc syscall.RawConn) (protocol int) {
	_ = rc.Control(func(fd uintptr) { protocol, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL) })
	return protocol
}

// TestListenMany has more listening sockets than are listed: their connections are taken all the same, and many owners of one.
func TestListenMany(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	h := newHandedBed(t, func(*Config) {})
	first, last := h.listen(h.B.Addr()), h.listen(h.B.Addr())
	h.hand(first, firstOwner)
	h.d[1].mu.Lock()
	for i := range uint64(listenedMost) {
		h.d[1].listened = append(h.d[1].listened, listened{1<<63 + i, []Owner{firstOwner}})
	}
	h.d[1].listened = h.d[1].listened[:listenedMost]
	h.d[1].mu.Unlock()
	h.hand(last, firstOwner)
	if n := len(h.d[1].Listeners()); n != listenedMost {
		t.Errorf("%d sockets are known, want %d", n, listenedMost)
	}
	h.wantOwner(first, firstOwner)
	var owners []Owner
	for i := range uint64(2 * ownersMost) {
		o := Owner{2<<60 + i, 65533}
		h.must(h.d[1].Attach(o.Cgroup, Does{Accept: true}))
		h.hand(last, o)
		h.wantOwner(last, o)
		owners = append(owners, o)
	}
	for i := len(owners) - 1; i >= ownersMost; i-- {
		h.wantOwner(last, owners[i])
		h.must(h.d[1].Detach(owners[i].Cgroup))
	}
	h.wantOwner(last, Owner{}) // there were more than are noted
}

// TestListenTakeover: the next stack knows the listening sockets of programs that run, whether the first one hands over or was
// killed.
func TestListenTakeover(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	h := newHandedBed(t, func(*Config) {})
	l := h.listen(h.B.Addr())
	h.hand(l, firstOwner)
	old := h.d[1]
	var next *Diverter
	h.must(h.B.Do(func() (err error) {
		next, err = New(old.cfg)
		return err
	}))
	defer next.Close()
	h.must(next.AddDevice(h.index(h.B, h.B.Links[0].Name)))
	h.must(next.Attach(firstOwner.Cgroup, Does{Accept: true}))
	h.must(old.Drain())
	h.wantOwner(l, firstOwner)
	h.must(old.Close())
	h.wantOwner(l, firstOwner)
	testkind.Eventually(t, "nothing is left of the connections", func() (any, bool) {
		left := left(next)
		return left, left == ""
	})
}

// TestListenersOfUsers: who has many listening sockets has the own ones forgotten, and as many users as there are places have one.
func TestListenersOfUsers(t *testing.T) {
	d := &Diverter{}
	cookie := uint64(0)
	note := func(uid uint32) {
		cookie++
		d.noteListener(listened{cookie, []Owner{{UID: uid}}})
	}
	of := func(uid uint32) (n int) {
		for _, l := range d.listened {
			if l.account() == uid {
				n++
			}
		}
		return n
	}
	const first = 70000
	const users = 10
	for i := range uint32(users) {
		for range listenedUser + 10 {
			note(first + i)
		}
		for j := range i + 1 {
			if n := of(first + j); n > listenedUser || n < listenedMost/users-1 {
				t.Errorf("user %d of %d has %d", j, i+1, n)
			}
		}
	}
	d.noteListener(listened{cookie, []Owner{{UID: first}}}) // again, by another user
	if n := len(d.listened); n != listenedMost || d.listened[n-1].cookie != cookie || of(first) == 0 {
		t.Errorf("%d are known", n)
	}
	d.listened = nil
	for i := range uint32(listenedMost) {
		note(first + i)
	}
	note(first + listenedMost)
	if of(first+listenedMost) != 1 || len(d.listened) != listenedMost {
		t.Error("one more user has none")
	}
	d.listened = nil
	for range 2 * listenedUser {
		note(0)
	}
	if n := of(0); n != 2*listenedUser {
		t.Errorf("root has %d", n)
	}
}
