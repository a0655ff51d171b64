// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// inSim runs f with two queue pairs that are connected over a simulated network.
func inSim(t *testing.T, c verbstest.Config, f func(t *testing.T, n *simNetwork, a, b *verbstest.Conn), opts ...Option) {
	synctest.Test(t, func(t *testing.T) {
		n := newSimNetwork(1, simFaults{delay: time.Microsecond})
		a, b := verbstest.Connect(t, n.pair(t, opts...), c)
		f(t, n, a, b)
	})
}

// TestQPClosed: a queue pair that is closed refuses every call.
func TestQPClosed(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
		if err := a.QP.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // no lock is left
			_, send := a.QP.PostSend(rdmaverbs.SendWR{Op: rdmaverbs.OpSend})
			_, recv := a.QP.PostRecv(rdmaverbs.RecvWR{})
			for name, err := range map[string]error{
				"ToRTR": a.QP.ToRTR(a.Path), "ToRTS": a.QP.ToRTS(a.Path), "ToError": a.QP.ToError(),
				"PostSend": send, "PostRecv": recv, "Close": a.QP.Close(),
			} {
				if !errors.Is(err, rdmaverbs.ErrClosed) {
					t.Errorf("%s: %v, want %v", name, err, rdmaverbs.ErrClosed)
				}
			}
		}
	})
}

// TestQPCloseWaits: Close returns when no packet of the queue pair is being sent any more.
func TestQPCloseWaits(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, n *simNetwork, a, b *verbstest.Conn) {
		dst, _ := b.MR(64, verbstest.All)
		sending := make(chan struct{})
		n.tap = func(from, _ smc.GID, _ []byte) bool {
			<-sending
			return false
		}
		go func() { _, _ = a.QP.PostSend(oneByte(1, dst)) }()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- a.QP.Close() }()
		synctest.Wait()
		if len(closed) != 0 {
			t.Error("closed while a packet is being sent")
		}
		close(sending)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestQPPathLimits: the fields of a path at their limits, and beyond.
func TestQPPathLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *rdmaverbs.PathInfo)
		ok     bool
	}{
		"as it is":              {func(*rdmaverbs.PathInfo) {}, true},
		"no GID":                {func(p *rdmaverbs.PathInfo) { p.DGID, p.DMAC = smc.GID{}, make(net.HardwareAddr, 6) }, false},
		"QPN 1":                 {func(p *rdmaverbs.PathInfo) { p.DQPN = 1 }, false},
		"QPN 2":                 {func(p *rdmaverbs.PathInfo) { p.DQPN = 2 }, true},
		"last QPN":              {func(p *rdmaverbs.PathInfo) { p.DQPN = psnMask }, true},
		"QPN of 25 bits":        {func(p *rdmaverbs.PathInfo) { p.DQPN = psnMask + 1 }, false},
		"last RQPSN":            {func(p *rdmaverbs.PathInfo) { p.RQPSN = psnMask }, true},
		"RQPSN of 25 bits":      {func(p *rdmaverbs.PathInfo) { p.RQPSN = psnMask + 1 }, false},
		"last SQPSN":            {func(p *rdmaverbs.PathInfo) { p.SQPSN = psnMask }, true},
		"SQPSN of 25 bits":      {func(p *rdmaverbs.PathInfo) { p.SQPSN = psnMask + 1 }, false},
		"no MTU":                {func(p *rdmaverbs.PathInfo) { p.PathMTU = 0 }, false},
		"retry count 7":         {func(p *rdmaverbs.PathInfo) { p.RetryCnt = 7 }, true},
		"retry count 8":         {func(p *rdmaverbs.PathInfo) { p.RetryCnt = 8 }, false},
		"RNR retry count 7":     {func(p *rdmaverbs.PathInfo) { p.RNRRetry = 7 }, true},
		"RNR retry count 8":     {func(p *rdmaverbs.PathInfo) { p.RNRRetry = 8 }, false},
		"RNR timer 31":          {func(p *rdmaverbs.PathInfo) { p.MinRNR = 31 }, true},
		"RNR timer 32":          {func(p *rdmaverbs.PathInfo) { p.MinRNR = 32 }, false},
		"timeout 31":            {func(p *rdmaverbs.PathInfo) { p.Timeout = 31 }, true},
		"timeout 32":            {func(p *rdmaverbs.PathInfo) { p.Timeout = 32 }, false},
		"most READs":            {func(p *rdmaverbs.PathInfo) { p.MaxDestRd = maxRead }, true},
		"too many READs":        {func(p *rdmaverbs.PathInfo) { p.MaxDestRd = maxRead + 1 }, false},
		"MAC of 5 bytes":        {func(p *rdmaverbs.PathInfo) { p.DMAC = make(net.HardwareAddr, 5) }, false},
		"MAC of 6 bytes":        {func(p *rdmaverbs.PathInfo) { p.DMAC = make(net.HardwareAddr, 6) }, true},
		"GID without a MAC":     {func(p *rdmaverbs.PathInfo) { p.DGID = smc.GID{0xfe, 0x80, 15: 1} }, false},
		"and the MAC beside it": {func(p *rdmaverbs.PathInfo) { p.DGID, p.DMAC = smc.GID{0xfe, 0x80, 15: 1}, make(net.HardwareAddr, 6) }, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, _ := verbstest.Create(t, newSimNetwork(1, simFaults{}).pair(t), verbstest.Config{})
			tt.change(&a.Path)
			if err := a.QP.ToRTR(a.Path); (err == nil) != tt.ok || err != nil && !errors.Is(err, rdmaverbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestQPResolve: the MAC address of the peer is that of the path, or else the one in a
// link-local GID (RFC 4291, appendix A). With version 2, the IP stack finds it otherwise.
func TestQPResolve(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	local := smc.GID{0xfe, 0x80, 8: 0x02, 9: 0x11, 10: 0x22, 11: 0xff, 12: 0xfe, 13: 0x33, 14: 0x44, 15: 0x55}
	without := func(i int) smc.GID {
		g := local
		g[i]++
		return g
	}
	for name, tt := range map[string]struct {
		typ  rdmaverbs.GIDType
		gid  smc.GID
		mac  net.HardwareAddr
		want net.HardwareAddr
		ok   bool
	}{
		"of the path":          {rdmaverbs.RoCEv1, local, mac, mac, true},
		"in the GID":           {rdmaverbs.RoCEv1, local, nil, net.HardwareAddr{0x00, 0x11, 0x22, 0x33, 0x44, 0x55}, true},
		"in the GID, local":    {rdmaverbs.RoCEv1, smc.GID{0xfe, 0x80, 11: 0xff, 12: 0xfe, 15: 1}, nil, net.HardwareAddr{2, 0, 0, 0, 0, 1}, true},
		"in the GID of v2":     {rdmaverbs.RoCEv2, local, nil, net.HardwareAddr{0x00, 0x11, 0x22, 0x33, 0x44, 0x55}, true},
		"not fe":               {rdmaverbs.RoCEv1, without(0), nil, nil, false},
		"not 80":               {rdmaverbs.RoCEv1, without(1), nil, nil, false},
		"not ff":               {rdmaverbs.RoCEv1, without(11), nil, nil, false},
		"not fe in the middle": {rdmaverbs.RoCEv1, without(12), nil, nil, false},
		"the IP stack":         {rdmaverbs.RoCEv2, without(0), nil, nil, true},
	} {
		q := &qp{sgid: rdmaverbs.GIDEntry{Type: tt.typ}}
		got, err := q.resolve(&rdmaverbs.PathInfo{DGID: tt.gid, DMAC: tt.mac})
		if !bytes.Equal(got, tt.want) || (err == nil) != tt.ok {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tt.want)
		}
	}
}

// TestQPHopLimit: version 1 stays on its link, version 2 may be routed, unless the path says
// otherwise.
func TestQPHopLimit(t *testing.T) {
	for _, tt := range []struct {
		index     int // of the GID
		hop, want uint8
	}{{0, 0, 1}, {1, 0, 64}, {0, 9, 9}, {1, 9, 9}} {
		synctest.Test(t, func(t *testing.T) {
			pair := newSimNetwork(1, simFaults{}).pair(t)
			pair.A.SGIDIndex, pair.B.SGIDIndex = tt.index, tt.index
			a, _ := verbstest.Create(t, pair, verbstest.Config{})
			a.Path.HopLimit = tt.hop
			a.ToRTS()
			if got := a.QP.(*qp).path.hopLimit; got != tt.want {
				t.Errorf("version %d, %d: hop limit %d, want %d", tt.index+1, tt.hop, got, tt.want)
			}
		})
	}
}

// TestQPCreateRefused: a queue pair that cannot be created leaves nothing behind.
func TestQPCreateRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair := newSimNetwork(1, simFaults{}).pair(t)
		d := pair.A.Dev
		newCQ := func(d rdmaverbs.Device) rdmaverbs.CQ {
			q, err := d.CreateCQ(4, nil)
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
		pd, err := d.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		send, recv, closed, other := newCQ(d), newCQ(d), newCQ(d), newCQ(pair.B.Dev)
		if err := closed.Close(); err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			init rdmaverbs.QPInit
			want error
		}{
			"queues of nothing":           {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv}, nil},
			"send CQ of another device":   {rdmaverbs.QPInit{SendCQ: other, RecvCQ: recv}, rdmaverbs.ErrInvalid},
			"receive CQ of another":       {rdmaverbs.QPInit{SendCQ: send, RecvCQ: other}, rdmaverbs.ErrInvalid},
			"send CQ is closed":           {rdmaverbs.QPInit{SendCQ: closed, RecvCQ: recv}, rdmaverbs.ErrClosed},
			"receive CQ is closed":        {rdmaverbs.QPInit{SendCQ: send, RecvCQ: closed}, rdmaverbs.ErrClosed},
			"less than no sends":          {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv, MaxSend: -1}, rdmaverbs.ErrInvalid},
			"less than no receives":       {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv, MaxRecv: -1}, rdmaverbs.ErrInvalid},
			"too many sends":              {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv, MaxSend: maxQPWR + 1}, rdmaverbs.ErrInvalid},
			"too many receives":           {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv, MaxRecv: maxQPWR + 1}, rdmaverbs.ErrInvalid},
			"as many of both as possible": {rdmaverbs.QPInit{SendCQ: send, RecvCQ: recv, MaxSend: maxQPWR, MaxRecv: maxQPWR}, nil},
		} {
			tt.init.Port = 1
			q, err := pd.CreateQP(tt.init)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
			if err == nil {
				if err := q.Close(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if err := errors.Join(send.Close(), recv.Close(), other.Close(), pd.Close()); err != nil {
			t.Errorf("something is still used: %v", err)
		}
	})
}

// TestQPWriteOnly: a device that sends each packet of a WRITE as one message does so for all
// its queue pairs.
func TestQPWriteOnly(t *testing.T) {
	for _, writeOnly := range []bool{false, true} {
		var opts []Option
		if writeOnly {
			opts = append(opts, WithWriteOnly())
		}
		inSim(t, verbstest.Config{MTU: smc.MTU256}, func(t *testing.T, n *simNetwork, a, b *verbstest.Conn) {
			first := map[bool]header.Opcode{false: header.WriteFirst, true: header.WriteOnly}[writeOnly]
			var got []header.Opcode
			n.tap = func(_, _ smc.GID, data []byte) bool {
				got = append(got, header.BTH(data).Opcode())
				return false
			}
			src, _ := a.MR(512, 0)
			dst, _ := b.MR(512, verbstest.All)
			a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: src, Len: 512}}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
			a.OK(1, 1)
			n.mu.Lock()
			defer n.mu.Unlock()
			if got[0] != first {
				t.Errorf("the first packet is a %v, want %v", got[0], first)
			}
		}, opts...)
	}
}

// TestQPReadTime: a READ takes one round trip.
func TestQPReadTime(t *testing.T) {
	testkind.System(t)
	inSim(t, verbstest.Config{}, func(t *testing.T, _ *simNetwork, a, b *verbstest.Conn) {
		mem, _ := a.MR(64, verbstest.All)
		src, _ := b.MR(64, verbstest.All)
		start := time.Now()
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpRead, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: mem, Len: 64}}, RemoteAddr: src.Addr(), RKey: src.RKey()})
		a.OK(1, 1)
		if d := time.Since(start); d != 2*time.Microsecond {
			t.Errorf("it took %v", d)
		}
	})
}

// TestQPRecvRefused: a receive request without a memory region is an error, and those before it
// are posted.
func TestQPRecvRefused(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
		mem, _ := a.MR(64, verbstest.All)
		good := rdmaverbs.SGE{MR: mem, Len: 8}
		for name, bad := range map[string]rdmaverbs.RecvWR{
			"no region":        {SG: rdmaverbs.SGE{Len: 1}},
			"no second region": {SG: good, More: rdmaverbs.SGE{Len: 1}},
			"negative offset":  {SG: rdmaverbs.SGE{MR: mem, Off: -1, Len: 1}},
		} {
			if n, err := a.QP.PostRecv(rdmaverbs.RecvWR{SG: good}, bad, rdmaverbs.RecvWR{SG: good}); n != 1 || !errors.Is(err, rdmaverbs.ErrInvalid) {
				t.Errorf("%s: %d are posted, %v", name, n, err)
			}
		}
	})
}

// TestQPNothingToSend: a request that cannot be sent, because its memory is closed or of another
// domain, makes no empty call of the wire.
func TestQPNothingToSend(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, n *simNetwork, a, b *verbstest.Conn) {
		mem, _ := a.MR(64, verbstest.All)
		dst, _ := b.MR(64, verbstest.All)
		if err := mem.Close(); err != nil {
			t.Fatal(err)
		}
		a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Signaled, SG: [2]rdmaverbs.SGE{{MR: mem, Len: 64}}, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.Fails(a.SendCQ, 1, rdmaverbs.StatusLocProtErr)
		if n.count.empty != 0 {
			t.Errorf("%d calls without packets", n.count.empty)
		}
	})
}

// TestQPReports: a program is called for completions and for nothing else.
func TestQPReports(t *testing.T) {
	var reports atomic.Int32
	inSim(t, verbstest.Config{NotifySend: func() { reports.Add(1) }}, func(t *testing.T, _ *simNetwork, a, b *verbstest.Conn) {
		dst, _ := a.MR(64, verbstest.All)
		for i := range 3 {
			wr := oneByte(uint64(i), dst)
			wr.Flags &^= rdmaverbs.Signaled
			b.Send(wr)
			time.Sleep(time.Millisecond)
		}
		if n := reports.Load(); n != 0 {
			t.Errorf("%d reports without a completion", n)
		}
		b.Send(oneByte(3, dst))
		time.Sleep(time.Millisecond)
		if n := reports.Load(); n != 1 {
			t.Errorf("%d reports of one completion", n)
		}
		b.OK(3, 1)
	})
}

// TestQPMalformed: a request of the peer that is too short for its opcode is refused.
func TestQPMalformed(t *testing.T) {
	inSim(t, verbstest.Config{}, func(t *testing.T, _ *simNetwork, a, b *verbstest.Conn) {
		f := newForger(b)
		f.in.srcPort = simPort(&a.QP.(*qp).path)
		header.BTH(f.in.data).SetOpcode(header.ReadRequest)
		f.sends(psn(b.Path.RQPSN))
		synctest.Wait()
		if s, n := b.QP.State(), b.Dev.(*Device).Counters().NAKSent; s != rdmaverbs.QPSErr || n != 1 {
			t.Errorf("state %d, %d NAKs", s, n)
		}
	})
}

// TestFaultInClose: a panic while a queue pair is closed does not keep it from being closed.
func TestFaultInClose(t *testing.T) {
	g := newCounted()
	inSim(t, verbstest.Config{}, func(t *testing.T, _ *simNetwork, a, _ *verbstest.Conn) {
		a.Recv(rdmaverbs.RecvWR{})
		endOf(a).rq.head = -1
		if err := a.QP.Close(); err != nil || g.panics.Load() != 1 {
			t.Errorf("%v, %d panics", err, g.panics.Load())
		}
		if err := errors.Join(a.SendCQ.Close(), a.RecvCQ.Close(), a.PD.Close()); err != nil {
			t.Errorf("something is still used: %v", err)
		}
	}, func(c *config) { c.guard = &g.Guard })
}
