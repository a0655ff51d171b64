// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"errors"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// receiverNotReady posts the receive request late: the sender waits for it.
func receiverNotReady(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{RNRRetry: 7})
	a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Imm: 1, Flags: rdmaverbs.Signaled},
		rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSendImm, Imm: 2, Flags: rdmaverbs.Signaled})
	time.Sleep(20 * time.Millisecond)
	a.None(a.SendCQ)
	b.Recv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2})
	a.OK(1, 2)
	for i, wc := range b.OKRecv(1, 2) {
		if wc.Imm != uint32(i+1) {
			t.Errorf("message %d came as number %d", wc.Imm, i+1)
		}
	}
}

func receiverNeverReady(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{RNRRetry: 2, MinRNR: 10})
	a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
	a.Fails(a.SendCQ, 1, rdmaverbs.StatusRNRRetryExcErr)
	a.inError()
	if s := b.QP.State(); s != rdmaverbs.QPSRTS {
		t.Errorf("state of the receiver is %d", s)
	}
}

// inError checks that the queue pair is in the error state.
func (x *Conn) inError() {
	x.T.Helper()
	if s := x.QP.State(); s != rdmaverbs.QPSErr {
		x.T.Errorf("state is %d, want the error state", s)
	}
}

func receiveTooSmall(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	src, _ := a.MR(8192, 0)
	dst, _ := b.MR(8192, rdmaverbs.AccessLocalWrite)
	b.Recv(rdmaverbs.RecvWR{ID: 1, SG: rdmaverbs.SGE{MR: dst, Len: 4999}}, rdmaverbs.RecvWR{ID: 2, SG: sge(dst)})
	a.Send(rdmaverbs.SendWR{ID: 7, Op: rdmaverbs.OpSend, SG: [2]rdmaverbs.SGE{{MR: src, Len: 5000}}})
	a.Fails(a.SendCQ, 7, rdmaverbs.StatusRemInvReqErr)
	b.Fails(b.RecvCQ, 1, rdmaverbs.StatusLocLenErr)
	b.Fails(b.RecvCQ, 2, rdmaverbs.StatusFlushErr)
	a.inError()
	b.inError()
}

// remoteAccess tries each kind of access to memory without permission.
func remoteAccess(t *testing.T, open Open) {
	const size = 4096
	type target struct {
		addr uint64
		rkey uint32
	}
	tests := []struct {
		name   string
		op     rdmaverbs.Opcode
		n      int
		target func(b *Conn) target
	}{
		{"WriteWrongKey", rdmaverbs.OpWrite, 8, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{m.Addr(), m.RKey() ^ 0x5a5a0000}
		}},
		{"ReadWrongKey", rdmaverbs.OpRead, 8, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{m.Addr(), m.RKey() ^ 0x5a5a0000}
		}},
		{"WriteBeyondEnd", rdmaverbs.OpWrite, size, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{m.Addr() + 1, m.RKey()}
		}},
		{"ReadBeyondEnd", rdmaverbs.OpRead, size, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{m.Addr() + 1, m.RKey()}
		}},
		{"WriteBeforeStart", rdmaverbs.OpWrite, 8, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{m.Addr() - 1, m.RKey()}
		}},
		{"WriteAddressWraps", rdmaverbs.OpWrite, 8, func(b *Conn) target {
			m, _ := b.MR(size, All)
			return target{^uint64(0) - 3, m.RKey()}
		}},
		{"WriteNoRight", rdmaverbs.OpWrite, 8, func(b *Conn) target {
			m, _ := b.MR(size, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteRead)
			return target{m.Addr(), m.RKey()}
		}},
		{"ReadNoRight", rdmaverbs.OpRead, 8, func(b *Conn) target {
			m, _ := b.MR(size, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite)
			return target{m.Addr(), m.RKey()}
		}},
		{"WriteOtherDomain", rdmaverbs.OpWrite, 8, func(b *Conn) target {
			m := b.otherDomain(size)
			return target{m.Addr(), m.RKey()}
		}},
	}
	p := open(t)
	for _, tt := range tests {
		a, b := Connect(t, p, Config{})
		to := tt.target(b)
		local, _ := a.MR(size, rdmaverbs.AccessLocalWrite)
		b.Recv(rdmaverbs.RecvWR{ID: 9})
		a.Send(rdmaverbs.SendWR{ID: 5, Op: tt.op, SG: [2]rdmaverbs.SGE{{MR: local, Len: tt.n}}, RemoteAddr: to.addr, RKey: to.rkey})
		wc := a.Wait(a.SendCQ, 1)[0]
		if wc.ID != 5 || wc.Status != rdmaverbs.StatusRemAccessErr {
			t.Errorf("%s: completion of %d: %v", tt.name, wc.ID, wc.Status)
		}
		// The peer's queue pair fails too.
		b.Fails(b.RecvCQ, 9, rdmaverbs.StatusFlushErr)
		a.inError()
		b.inError()
		for _, m := range b.bufs {
			for i, c := range m {
				if c != 0 {
					t.Fatalf("%s: byte %d was written", tt.name, i)
				}
			}
		}
	}
}

// otherDomain registers memory in a new protection domain.
func (x *Conn) otherDomain(n int) rdmaverbs.MR {
	x.T.Helper()
	pd, err := x.Dev.AllocPD()
	if err != nil {
		x.T.Fatal(err)
	}
	buf, err := rdmaverbs.AllocBuffer(n)
	if err != nil {
		x.T.Fatal(err)
	}
	m, err := pd.RegisterMR(buf, All)
	if err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() {
		m.Close()
		pd.Close()
		rdmaverbs.FreeBuffer(buf)
	})
	return m
}

// staleKey uses the key of a region that was closed, after another region was
// registered on the same memory.
func staleKey(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	old, buf := b.MR(4096, All)
	addr, rkey := old.Addr(), old.RKey()
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := b.PD.RegisterMR(buf, All)
	if err != nil {
		t.Fatal(err)
	}
	b.mrs = append(b.mrs, m)
	if m.RKey() == rkey {
		t.Errorf("key %#x was used again at once", rkey)
	}
	a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline, InlineData: []byte("stale"), RemoteAddr: addr, RKey: rkey})
	a.Fails(a.SendCQ, 1, rdmaverbs.StatusRemAccessErr)
	checkOnly(t, buf, 0, nil)
}

// noQueuePairAccess accesses memory over a queue pair without access rights.
func noQueuePairAccess(t *testing.T, open Open) {
	p := open(t)
	for _, op := range []rdmaverbs.Opcode{rdmaverbs.OpWrite, rdmaverbs.OpRead} {
		a, b := Connect(t, p, Config{NoAccess: true})
		m, buf := b.MR(4096, All)
		local, data := a.MR(8, rdmaverbs.AccessLocalWrite)
		fill(data, 1)
		a.Send(rdmaverbs.SendWR{ID: 1, Op: op, SG: [2]rdmaverbs.SGE{sge(local)}, RemoteAddr: m.Addr(), RKey: m.RKey()})
		// Devices differ in which of the two errors they answer.
		if wc := a.Wait(a.SendCQ, 1)[0]; wc.Status != rdmaverbs.StatusRemInvReqErr && wc.Status != rdmaverbs.StatusRemAccessErr {
			t.Errorf("operation %d: %v", op, wc.Status)
		}
		checkOnly(t, buf, 0, nil)
	}
}

func localProtection(t *testing.T, open Open) {
	p := open(t)
	tests := []struct {
		name string
		op   rdmaverbs.Opcode
		sg   func(a *Conn) rdmaverbs.SGE
	}{
		{"BeyondEnd", rdmaverbs.OpSend, func(a *Conn) rdmaverbs.SGE {
			m, _ := a.MR(4096, All)
			return rdmaverbs.SGE{MR: m, Off: 4090, Len: 7}
		}},
		{"OtherDomain", rdmaverbs.OpWrite, func(a *Conn) rdmaverbs.SGE { return sge(a.otherDomain(4096)) }},
		{"ReadIntoReadOnly", rdmaverbs.OpRead, func(a *Conn) rdmaverbs.SGE {
			m, _ := a.MR(4096, 0)
			return sge(m)
		}},
	}
	for _, tt := range tests {
		a, b := Connect(t, p, Config{})
		remote, _ := b.MR(8192, All)
		// What was posted before still succeeds.
		a.Send(
			rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline | rdmaverbs.Signaled, InlineData: []byte{1}, RemoteAddr: remote.Addr(), RKey: remote.RKey()},
			rdmaverbs.SendWR{ID: 2, Op: tt.op, SG: [2]rdmaverbs.SGE{tt.sg(a)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()},
		)
		a.OK(1, 1)
		wc := a.Wait(a.SendCQ, 1)[0]
		if wc.ID != 2 || wc.Status != rdmaverbs.StatusLocProtErr {
			t.Errorf("%s: completion of %d: %v", tt.name, wc.ID, wc.Status)
		}
		a.inError()
	}
}

func failureFlushesRest(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	m, _ := b.MR(4096, All)
	write := func(id uint64, key uint32) rdmaverbs.SendWR {
		return rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpWrite, Flags: rdmaverbs.Inline, InlineData: []byte{1}, RemoteAddr: m.Addr(), RKey: key}
	}
	a.Recv(rdmaverbs.RecvWR{ID: 20}, rdmaverbs.RecvWR{ID: 21})
	a.Send(write(1, m.RKey()), write(2, m.RKey()^0x77770000), write(3, m.RKey()), write(4, m.RKey()))
	a.Fails(a.SendCQ, 2, rdmaverbs.StatusRemAccessErr)
	a.Fails(a.SendCQ, 3, rdmaverbs.StatusFlushErr)
	a.Fails(a.SendCQ, 4, rdmaverbs.StatusFlushErr)
	a.Fails(a.RecvCQ, 20, rdmaverbs.StatusFlushErr)
	a.Fails(a.RecvCQ, 21, rdmaverbs.StatusFlushErr)
}

// wantErr checks that err wraps want.
func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func states(t *testing.T, open Open) {
	a, b := Create(t, open(t), Config{})
	if s := a.QP.State(); s != rdmaverbs.QPSInit {
		t.Fatalf("state after creation is %d", s)
	}
	send := rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled}
	_, err := a.QP.PostSend(send)
	wantErr(t, "PostSend in Init", err, rdmaverbs.ErrBadState)
	wantErr(t, "ToRTS in Init", a.QP.ToRTS(a.Path), rdmaverbs.ErrBadState)
	b.Recv(rdmaverbs.RecvWR{ID: 1}) // allowed in Init

	for _, x := range []*Conn{a, b} {
		if err := x.QP.ToRTR(x.Path); err != nil {
			t.Fatal(err)
		}
		if s := x.QP.State(); s != rdmaverbs.QPSRTR {
			t.Fatalf("state after ToRTR is %d", s)
		}
		wantErr(t, "ToRTR in RTR", x.QP.ToRTR(x.Path), rdmaverbs.ErrBadState)
	}
	_, err = a.QP.PostSend(send)
	wantErr(t, "PostSend in RTR", err, rdmaverbs.ErrBadState)

	// One side ready to send is enough: the other receives in RTR.
	if err := a.QP.ToRTS(a.Path); err != nil {
		t.Fatal(err)
	}
	a.Send(send)
	a.OK(1, 1)
	b.OKRecv(1, 1)

	if err := a.QP.ToError(); err != nil {
		t.Fatal(err)
	}
	a.inError()
	wantErr(t, "ToRTR in the error state", a.QP.ToRTR(a.Path), rdmaverbs.ErrBadState)
	wantErr(t, "ToRTS in the error state", a.QP.ToRTS(a.Path), rdmaverbs.ErrBadState)
	// Requests posted in the error state are flushed.
	a.Send(rdmaverbs.SendWR{ID: 5, Op: rdmaverbs.OpSendImm})
	a.Fails(a.SendCQ, 5, rdmaverbs.StatusFlushErr)
	a.Recv(rdmaverbs.RecvWR{ID: 6})
	a.Fails(a.RecvCQ, 6, rdmaverbs.StatusFlushErr)
}

func queueFull(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{MaxSend: 16, MaxRecv: 16})
	max := 1 << 20 // devices may round up
	n, err := 0, error(nil)
	for err == nil && n < max {
		_, err = b.QP.PostRecv(rdmaverbs.RecvWR{ID: uint64(n)})
		n++
	}
	wantErr(t, "PostRecv without end", err, rdmaverbs.ErrQueueFull)
	if n--; n < 16 {
		t.Errorf("%d receive requests fit, want 16", n)
	}
	// A has no receive requests: what B sends stays outstanding.
	n, err = 0, nil
	for err == nil && n < max {
		_, err = b.QP.PostSend(rdmaverbs.SendWR{ID: uint64(n), Op: rdmaverbs.OpSendImm})
		n++
	}
	wantErr(t, "PostSend without end", err, rdmaverbs.ErrQueueFull)
	if n--; n < 16 {
		t.Errorf("%d send requests fit, want 16", n)
	}
	a.None(a.SendCQ)
}

func toErrorFlushes(t *testing.T, open Open) {
	a, b := Connect(t, open(t), Config{})
	a.Recv(rdmaverbs.RecvWR{ID: 1}, rdmaverbs.RecvWR{ID: 2})
	for i := range 10 { // outstanding: B has no receive request
		a.Send(rdmaverbs.SendWR{ID: uint64(10 + i), Op: rdmaverbs.OpSendImm})
	}
	if err := a.QP.ToError(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		a.Fails(a.SendCQ, uint64(10+i), rdmaverbs.StatusFlushErr)
	}
	a.Fails(a.RecvCQ, 1, rdmaverbs.StatusFlushErr)
	a.Fails(a.RecvCQ, 2, rdmaverbs.StatusFlushErr)
	a.None(a.SendCQ)
	if s := b.QP.State(); s != rdmaverbs.QPSRTS {
		t.Errorf("state of the peer is %d", s)
	}
}

func closeOrder(t *testing.T, open Open) {
	a, _ := Connect(t, open(t), Config{})
	m, _ := a.MR(4096, All)
	wantErr(t, "close of a domain in use", a.PD.Close(), rdmaverbs.ErrBusy)
	wantErr(t, "close of a completion queue in use", a.SendCQ.Close(), rdmaverbs.ErrBusy)
	for _, c := range []struct {
		name  string
		close func() error
	}{{"queue pair", a.QP.Close}, {"memory region", m.Close}, {"send queue", a.SendCQ.Close}, {"receive queue", a.RecvCQ.Close}, {"domain", a.PD.Close}} {
		if err := c.close(); err != nil {
			t.Errorf("close of the %s: %v", c.name, err)
		}
		wantErr(t, "second close of the "+c.name, c.close(), rdmaverbs.ErrClosed)
	}
	_, err := a.QP.PostSend(rdmaverbs.SendWR{Op: rdmaverbs.OpSend})
	wantErr(t, "PostSend after close", err, rdmaverbs.ErrClosed)
	_, err = a.QP.PostRecv(rdmaverbs.RecvWR{})
	wantErr(t, "PostRecv after close", err, rdmaverbs.ErrClosed)
}

func invalidArguments(t *testing.T, open Open) {
	p := open(t)
	dev := p.A.Dev
	if _, err := dev.CreateCQ(0, nil); err == nil {
		t.Error("completion queue of no entries")
	}
	a, _ := Connect(t, p, Config{})
	_, err := a.PD.RegisterMR(nil, All)
	wantErr(t, "memory region of nothing", err, rdmaverbs.ErrInvalid)
	buf := make([]byte, 4096)
	_, err = a.PD.RegisterMR(buf, rdmaverbs.AccessRemoteWrite)
	wantErr(t, "remote write without local write", err, rdmaverbs.ErrInvalid)

	good := rdmaverbs.QPInit{SendCQ: a.SendCQ, RecvCQ: a.RecvCQ, MaxSend: 1, MaxRecv: 1, Port: 1, SGIDIndex: p.A.SGIDIndex}
	for name, change := range map[string]func(*rdmaverbs.QPInit){
		"port 0":              func(i *rdmaverbs.QPInit) { i.Port = 0 },
		"GID index":           func(i *rdmaverbs.QPInit) { i.SGIDIndex = 10000 },
		"no completion queue": func(i *rdmaverbs.QPInit) { i.SendCQ = nil },
		"send queue size":     func(i *rdmaverbs.QPInit) { i.MaxSend = 1 << 30 },
	} {
		init := good
		change(&init)
		if q, err := a.PD.CreateQP(init); err == nil {
			t.Errorf("queue pair with wrong %s was created", name)
			q.Close()
		}
	}
	c, _ := Create(t, p, Config{})
	for name, change := range map[string]func(*rdmaverbs.PathInfo){
		"GID": func(p *rdmaverbs.PathInfo) { p.DGID = smc.GID{} },
		"MTU": func(p *rdmaverbs.PathInfo) { p.PathMTU = 6 },
		"QPN": func(p *rdmaverbs.PathInfo) { p.DQPN = 1 << 24 },
		"PSN": func(p *rdmaverbs.PathInfo) { p.RQPSN = 1 << 24 },
		"RNR": func(p *rdmaverbs.PathInfo) { p.MinRNR = 32 },
	} {
		path := c.Path
		change(&path)
		wantErr(t, "path with wrong "+name, c.QP.ToRTR(path), rdmaverbs.ErrInvalid)
	}
	for name, wr := range map[string]rdmaverbs.SendWR{
		"operation":        {Op: 99},
		"inline size":      {Op: rdmaverbs.OpSend, Flags: rdmaverbs.Inline, InlineData: make([]byte, 257)},
		"inline read":      {Op: rdmaverbs.OpRead, Flags: rdmaverbs.Inline},
		"no memory region": {Op: rdmaverbs.OpSend, SG: [2]rdmaverbs.SGE{{Len: 1}}},
	} {
		if n, err := a.QP.PostSend(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite}, wr); n != 1 || !errors.Is(err, rdmaverbs.ErrInvalid) {
			t.Errorf("wrong %s: posted %d, error %v", name, n, err)
		}
	}
}

func deviceCloseFlushes(t *testing.T, open Open) {
	p := open(t)
	a, _ := Connect(t, p, Config{})
	a.Recv(rdmaverbs.RecvWR{ID: 1})
	a.Send(rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSendImm}) // outstanding
	if err := p.A.Dev.Close(); err != nil {
		t.Fatal(err)
	}
	a.Fails(a.RecvCQ, 1, rdmaverbs.StatusFlushErr)
	a.Fails(a.SendCQ, 2, rdmaverbs.StatusFlushErr)
	var fatal bool
	timeout := time.After(Patience)
	for {
		select {
		case ev, ok := <-p.A.Dev.Events():
			if !ok {
				if !fatal {
					t.Error("no event tells that the device is gone")
				}
				return
			}
			fatal = fatal || ev.Type == rdmaverbs.EventDeviceFatal
		case <-timeout:
			t.Fatal("channel of events is not closed")
		}
	}
}
