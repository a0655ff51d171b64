// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"net"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// Patience is the longest time that the suite waits for anything.
const Patience = time.Minute

// A Pair is two devices whose first ports can reach each other. Both may be the
// same device. The function that opened them closes them.
type Pair struct{ A, B End }

// An End is a device and how its peer reaches it.
type End struct {
	Dev       rdmaverbs.Device
	SGIDIndex int              // GID table entry to use
	DMAC      net.HardwareAddr // MAC address of the peer, see rdmaverbs.PathInfo
}

// Open opens a pair of devices for one test, and closes them with t.Cleanup.
type Open func(t testing.TB) Pair

// Config has the parameters of the queue pairs that Connect creates. A zero
// field means the value that Linux uses for SMC-R, or a sufficient one.
type Config struct {
	MaxSend, MaxRecv int
	CQDepth          int
	Access           rdmaverbs.Access // default: everything
	NoAccess         bool             // none
	MTU              smc.MTU          // default: the smaller ActiveMTU
	PSN              uint32           // first PSN of A; B starts 1000 later
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	NoRetry          bool // RetryCnt and RNRRetry are meant to be 0
	MinRNR           uint8
	Reads            uint8
	Notify           func() // for the receive queue of B; nil: the suite waits on a channel
	NotifySend       func() // for the send queue of B; nil as for Notify
	NotifyA          func() // for the receive queue of A; nil as for Notify
}

func (c *Config) defaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set8 := func(p *uint8, v uint8) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.MaxSend, 64)
	set(&c.MaxRecv, 64)
	set(&c.CQDepth, 256)
	if c.Access == 0 && !c.NoAccess {
		c.Access = rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteWrite | rdmaverbs.AccessRemoteRead
	}
	set8(&c.Timeout, 15)
	if !c.NoRetry {
		set8(&c.RetryCnt, 7)
		set8(&c.RNRRetry, 7)
	}
	set8(&c.MinRNR, 5)
	set8(&c.Reads, 1)
}

// Conn is one side of a connection: a queue pair with its own protection domain
// and completion queues.
type Conn struct {
	T      testing.TB
	Dev    rdmaverbs.Device
	PD     rdmaverbs.PD
	SendCQ rdmaverbs.CQ
	RecvCQ rdmaverbs.CQ
	QP     rdmaverbs.QP
	Path   rdmaverbs.PathInfo // to the peer
	wake   chan struct{}
	mrs    []rdmaverbs.MR
	bufs   [][]byte
}

// Connect creates a queue pair on each device of the pair and connects the two.
// t.Cleanup closes all objects. A failure ends the test.
func Connect(t testing.TB, p Pair, c Config) (a, b *Conn) {
	t.Helper()
	a, b = Create(t, p, c)
	a.ToRTS()
	b.ToRTS()
	return a, b
}

// Create does the same as Connect, but leaves the queue pairs in state Init.
func Create(t testing.TB, p Pair, c Config) (a, b *Conn) {
	t.Helper()
	c.defaults()
	a = newConn(t, p.A, c, c.NotifyA, nil)
	b = newConn(t, p.B, c, c.Notify, c.NotifySend)
	mtu := c.MTU
	if mtu == 0 {
		mtu = min(a.port().ActiveMTU, b.port().ActiveMTU)
	}
	path := rdmaverbs.PathInfo{
		PathMTU: mtu, Timeout: c.Timeout, RetryCnt: c.RetryCnt, RNRRetry: c.RNRRetry,
		MinRNR: c.MinRNR, MaxRdAtom: c.Reads, MaxDestRd: c.Reads,
	}
	psnB := (c.PSN + 1000) & 0xffffff
	a.Path, b.Path = path, path
	a.Path.DGID, a.Path.DQPN, a.Path.DMAC = b.gid(p.B.SGIDIndex), b.QP.QPN(), p.A.DMAC
	a.Path.SQPSN, a.Path.RQPSN = c.PSN, psnB
	b.Path.DGID, b.Path.DQPN, b.Path.DMAC = a.gid(p.A.SGIDIndex), a.QP.QPN(), p.B.DMAC
	b.Path.SQPSN, b.Path.RQPSN = psnB, c.PSN
	return a, b
}

func newConn(t testing.TB, e End, c Config, notify, notifySend func()) *Conn {
	t.Helper()
	x := &Conn{T: t, Dev: e.Dev, wake: make(chan struct{}, 1)}
	if notify == nil {
		notify = x.notify
	}
	if notifySend == nil {
		notifySend = x.notify
	}
	var err error
	if x.PD, err = e.Dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if x.SendCQ, err = e.Dev.CreateCQ(c.CQDepth, notifySend); err != nil {
		t.Fatal(err)
	}
	if x.RecvCQ, err = e.Dev.CreateCQ(c.CQDepth, notify); err != nil {
		t.Fatal(err)
	}
	x.QP, err = x.PD.CreateQP(rdmaverbs.QPInit{
		SendCQ: x.SendCQ, RecvCQ: x.RecvCQ, MaxSend: c.MaxSend, MaxRecv: c.MaxRecv,
		Port: 1, SGIDIndex: e.SGIDIndex, Access: c.Access,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.close)
	return x
}

// close closes all objects. It ignores errors: the test may have closed some
// objects itself.
func (x *Conn) close() {
	x.QP.Close()
	for _, m := range x.mrs {
		m.Close()
	}
	for _, b := range x.bufs {
		if err := rdmaverbs.FreeBuffer(b); err != nil {
			x.T.Error(err)
		}
	}
	x.SendCQ.Close()
	x.RecvCQ.Close()
	x.PD.Close()
}

func (x *Conn) notify() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *Conn) port() rdmaverbs.PortAttr {
	x.T.Helper()
	p, err := x.Dev.Port(1)
	if err != nil {
		x.T.Fatal(err)
	}
	return p
}

func (x *Conn) gid(i int) smc.GID {
	x.T.Helper()
	g, err := x.Dev.GIDs(1)
	if err != nil {
		x.T.Fatal(err)
	}
	if i >= len(g) {
		x.T.Fatalf("GID index %d, the table of %s is %v", i, x.Dev.Name(), g)
	}
	return g[i].GID
}

// ToRTS moves the queue pair from Init to ready-to-send.
func (x *Conn) ToRTS() {
	x.T.Helper()
	if err := x.QP.ToRTR(x.Path); err != nil {
		x.T.Fatal(err)
	}
	if err := x.QP.ToRTS(x.Path); err != nil {
		x.T.Fatal(err)
	}
}

// All has every access right.
const All = rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteWrite | rdmaverbs.AccessRemoteRead

// MR allocates and registers n bytes. t.Cleanup frees them.
func (x *Conn) MR(n int, access rdmaverbs.Access) (rdmaverbs.MR, []byte) {
	x.T.Helper()
	buf, err := rdmaverbs.AllocBuffer(n)
	if err != nil {
		x.T.Fatal(err)
	}
	x.bufs = append(x.bufs, buf)
	m, err := x.PD.RegisterMR(buf, access)
	if err != nil {
		x.T.Fatal(err)
	}
	x.mrs = append(x.mrs, m)
	return m, buf
}

// Send posts send work requests.
func (x *Conn) Send(wr ...rdmaverbs.SendWR) {
	x.T.Helper()
	if n, err := x.QP.PostSend(wr...); err != nil || n != len(wr) {
		x.T.Fatalf("PostSend: posted %d of %d: %v", n, len(wr), err)
	}
}

// Recv posts receive work requests.
func (x *Conn) Recv(wr ...rdmaverbs.RecvWR) {
	x.T.Helper()
	if n, err := x.QP.PostRecv(wr...); err != nil || n != len(wr) {
		x.T.Fatalf("PostRecv: posted %d of %d: %v", n, len(wr), err)
	}
}

// Wait waits for n completions of cq, which is a queue of x, and returns them.
func (x *Conn) Wait(cq rdmaverbs.CQ, n int) []rdmaverbs.WC {
	x.T.Helper()
	wcs := make([]rdmaverbs.WC, n)
	got, err := x.wait(cq, wcs)
	if err != nil {
		x.T.Fatalf("%v: %+v", err, wcs[:got])
	}
	return wcs
}

func (x *Conn) wait(cq rdmaverbs.CQ, wcs []rdmaverbs.WC) (int, error) {
	got := cq.Poll(wcs)
	if got == len(wcs) {
		return got, nil
	}
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	// Both queues share the channel, so a wake-up may be for the other queue.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if got += cq.Poll(wcs[got:]); got == len(wcs) {
			return got, nil
		}
		select {
		case <-x.wake:
		case <-tick.C:
		case <-timer.C:
			return got, fmt.Errorf("%d of %d completions after %v", got, len(wcs), Patience)
		}
	}
}

// OK waits for n successful completions of the send queue with IDs that
// count up from first.
func (x *Conn) OK(first uint64, n int) []rdmaverbs.WC {
	x.T.Helper()
	return x.check(x.Wait(x.SendCQ, n), first)
}

// OKRecv waits for n successful completions of the receive queue with IDs that
// count up from first.
func (x *Conn) OKRecv(first uint64, n int) []rdmaverbs.WC {
	x.T.Helper()
	return x.check(x.Wait(x.RecvCQ, n), first)
}

func (x *Conn) check(wcs []rdmaverbs.WC, first uint64) []rdmaverbs.WC {
	x.T.Helper()
	for i, wc := range wcs {
		if wc.Status != rdmaverbs.StatusSuccess || wc.ID != first+uint64(i) || wc.QPN != x.QP.QPN() {
			x.T.Fatalf("completion %d: %+v (%v), want ID %d of queue pair %d", i, wc, wc.Status, first+uint64(i), x.QP.QPN())
		}
	}
	return wcs
}

// Fails waits for one completion of cq with that ID and status.
func (x *Conn) Fails(cq rdmaverbs.CQ, id uint64, want rdmaverbs.WCStatus) {
	x.T.Helper()
	if wc := x.Wait(cq, 1)[0]; wc.ID != id || wc.Status != want {
		x.T.Fatalf("completion of request %d: %v, want %d: %v", wc.ID, wc.Status, id, want)
	}
}

// None checks that cq has no completion now.
func (x *Conn) None(cq rdmaverbs.CQ) {
	x.T.Helper()
	var wc [1]rdmaverbs.WC
	if cq.Poll(wc[:]) != 0 {
		x.T.Fatalf("unexpected completion %+v (%v)", wc[0], wc[0].Status)
	}
}
