// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"errors"
	"fmt"
	"time"

	"smcr/userstack/wire"
)

// cursor returns the cursor at a position of a stream, in an element of size bytes.
func cursor(at uint64, size int) wire.Cursor {
	return wire.Cursor{Wrap: uint16(at / uint64(size)), Count: uint32(at % uint64(size))}
}

// writes returns the RDMA WRITEs that put b at the peer's position in the victim's element.
func (p *Peer) writes(b []byte) (pkts []Packet) {
	size := p.Victim.RMBESize.Bytes()
	base := p.Victim.RMB.Addr + uint64(size)*uint64(p.Victim.RMBEIndex-1)
	for at := p.sent; len(b) > 0; {
		off := int(at % uint64(size))
		n := min(len(b), mtu1024.Bytes(), size-off)
		pkts = append(pkts, Write(p.Victim.RMB.RKey, base+uint64(off), b[:n]))
		at, b = at+uint64(n), b[n:]
	}
	return pkts
}

// Transfer sends bytes to the victim's program in order, over the first connection, and
// tells it so. It is for one goroutine at a time.
func (p *Peer) Transfer(b []byte) error {
	pkts := p.writes(b)
	p.sent += uint64(len(b))
	return p.QP.Send(append(pkts, p.Say(p.cursors()))...)
}

// cursors returns a CDC message with the honest cursors of the first connection.
func (p *Peer) cursors() wire.CDC {
	return wire.CDC{Prod: cursor(p.sent, p.Victim.RMBESize.Bytes()), Cons: cursor(p.got, elementSize.Bytes())}
}

// Echo sends bytes, at most half an element, and returns what comes back.
func (p *Peer) Echo(b []byte) ([]byte, error) {
	if err := p.Transfer(b); err != nil {
		return nil, err
	}
	return p.Collect(len(b))
}

// Collect waits for n bytes of the victim's program, and returns what came.
func (p *Peer) Collect(n int) (got []byte, err error) {
	size := elementSize.Bytes()
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for len(got) < n {
		select {
		case m := <-p.cdc:
			if m.State != 0 {
				return got, fmt.Errorf("adversary: the victim ends the connection: flags %#x", uint8(m.State))
			}
			for cursor(p.got, size) != m.Prod {
				off, end := int(p.got%uint64(size)), size
				if cursor(p.got, size).Wrap == m.Prod.Wrap {
					end = int(m.Prod.Count)
				}
				part := make([]byte, end-off)
				p.QP.Load(part, off)
				got, p.got = append(got, part...), p.got+uint64(len(part))
			}
		case <-p.ended:
			return got, errors.New("adversary: the victim has ended the link group")
		case <-late.C:
			return got, fmt.Errorf("adversary: %d of %d bytes came back", len(got), n)
		}
	}
	// The victim may use the room again.
	return got, p.QP.Send(p.Say(p.cursors()))
}

// AwaitReset waits until the victim resets the first connection, and answers as a peer must
// that does not write to the element any more.
func (p *Peer) AwaitReset() error {
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for {
		select {
		case m := <-p.cdc:
			if m.State&wire.ConnAbnormalClose != 0 {
				end := p.cursors()
				end.State = wire.ConnAbnormalClose
				return p.QP.Send(p.Say(end))
			}
		case <-p.ended:
			return errors.New("adversary: the victim has ended the link group")
		case <-late.C:
			return errors.New("adversary: the connection is not reset")
		}
	}
}
