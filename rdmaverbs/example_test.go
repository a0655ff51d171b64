// SPDX-License-Identifier: Apache-2.0

package rdmaverbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/smc"
	"smcr/userstack/simfabric"
)

// Software RoCE has a device for each Ethernet netdev. To open a device needs
// CAP_NET_RAW.
func ExampleProvider() {
	ctx := context.Background()
	var p rdmaverbs.Provider = softroce.New()
	dev, err := p.Open(ctx, "soft-eth0")
	if errors.Is(err, rdmaverbs.ErrNoDevice) {
		log.Fatal("there is no eth0")
	} else if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	port, err := dev.Port(1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(dev.Name(), port.State == rdmaverbs.PortActive, port.ActiveMTU.Bytes())
}

// end is one end of a connection: a queue pair, its completions and a memory
// region.
type end struct {
	dev  rdmaverbs.Device
	mac  []byte
	gid  rdmaverbs.GIDEntry
	pd   rdmaverbs.PD
	cq   rdmaverbs.CQ
	wake chan struct{}
	buf  []byte
	mr   rdmaverbs.MR
	qp   rdmaverbs.QP
}

// open opens a device and creates a queue pair, and a memory region that the peer may
// write to.
func open(p rdmaverbs.Provider, device string) (e *end, err error) {
	e = &end{wake: make(chan struct{}, 1)}
	if e.dev, err = p.Open(context.Background(), device); err != nil {
		return nil, err
	}
	port, err := e.dev.Port(1)
	if err != nil {
		return nil, err
	}
	e.mac = port.HWAddr
	gids, err := e.dev.GIDs(1)
	if err != nil {
		return nil, err
	}
	e.gid = gids[0]
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(16, func() {
		select {
		case e.wake <- struct{}{}:
		default: // the user of the queue looks for completions anyway
		}
	}); err != nil {
		return nil, err
	}
	if e.buf, err = rdmaverbs.AllocBuffer(4096); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegisterMR(e.buf, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.CreateQP(rdmaverbs.QPInit{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 4, MaxRecv: 4, Port: 1, SGIDIndex: 0, Access: rdmaverbs.AccessRemoteWrite,
	})
	return e, err
}

// close closes everything in reverse order.
func (e *end) close() error {
	err := errors.Join(e.qp.Close(), e.mr.Close(), e.cq.Close(), e.pd.Close(), e.dev.Close())
	return errors.Join(err, rdmaverbs.FreeBuffer(e.buf))
}

// connect connects a queue pair to that of peer. Two programs exchange what it reads from
// peer over TCP. Packet sequence numbers should be random.
func (e *end) connect(peer *end, ownPSN, peerPSN uint32) error {
	path := rdmaverbs.PathInfo{
		DGID: peer.gid.GID, DMAC: peer.mac, DQPN: peer.qp.QPN(), RQPSN: peerPSN, SQPSN: ownPSN,
		PathMTU: smc.MTU1024, Timeout: 17, RetryCnt: 7, RNRRetry: 7,
	}
	if err := e.qp.ToRTR(path); err != nil {
		return err
	}
	return e.qp.ToRTS(path)
}

// completion waits for one completion.
func (e *end) completion() rdmaverbs.WC {
	var wc [1]rdmaverbs.WC
	for e.cq.Poll(wc[:]) == 0 {
		<-e.wake
	}
	return wc[0]
}

// An RDMA WRITE into the memory of a peer, and a SEND that announces it: SMC-R moves data
// in these two steps. The devices are those of a simulated network, so that this example
// runs everywhere. With softroce.New() in place of the simulated providers, they are real
// devices.
func Example() {
	world := simfabric.New(simfabric.Config{Delay: 10 * time.Microsecond})
	defer world.Close()
	var ends [2]*end
	for i, name := range []string{"hostA", "hostB"} {
		addr := netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1))
		host := world.Host(name, simfabric.NetDev{Name: "eth0", Addrs: []netip.Prefix{addr}})
		e, err := open(host.Provider(), "sim-eth0")
		if err != nil {
			log.Fatal(err)
		}
		defer e.close()
		ends[i] = e
	}
	a, b := ends[0], ends[1]
	if err := errors.Join(a.connect(b, 100, 200), b.connect(a, 200, 100)); err != nil {
		log.Fatal(err)
	}

	if _, err := b.qp.PostRecv(rdmaverbs.RecvWR{ID: 1, SG: rdmaverbs.SGE{MR: b.mr, Off: 2048, Len: 64}}); err != nil {
		log.Fatal(err)
	}
	n := copy(a.buf, "written into the memory of the peer")
	if _, err := a.qp.PostSend(
		rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpWrite, SG: [2]rdmaverbs.SGE{{MR: a.mr, Len: n}}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		rdmaverbs.SendWR{ID: 2, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled | rdmaverbs.Inline, InlineData: []byte{byte(n)}},
	); err != nil {
		log.Fatal(err)
	}
	// A queue pair delivers in order: when the SEND arrives, the bytes of the WRITE have
	// arrived too.
	recv := b.completion()
	if err := recv.Status.Err(); err != nil {
		log.Fatal(err)
	}
	length := b.buf[2048]
	fmt.Printf("received %d byte: %s\n", recv.Len, b.buf[:length])
	sent := a.completion()
	fmt.Println("request", sent.ID, "done:", sent.Status)
	// Output:
	// received 1 byte: written into the memory of the peer
	// request 2 done: success
}
