// SPDX-License-Identifier: Apache-2.0

package softroce

// peerPort is the UDP source port of the peer of a queue pair. The queue pair accepts
// RoCE version 2 packets only from this port.
//
// Without it, every user of the peer's host could send packets in the name of the peer:
// a datagram from any UDP socket has the right address, and only the PSN, which has 24
// bits, would have to be found. All of these can be sent in less than a minute.
//
//	Port      | Packet                                  | Port afterwards
//	not known | proves that it is from the peer         | that of the packet
//	not known | other                                   | not known
//	known     | from this port                          | the same
//	known     | from another port: dropped and counted  | the same
//
// The port is known from the start if the peer told it (rdmaverbs.PathInfo), as stacks of
// this module do for the first link of a link group. Otherwise the first packet that
// proves where it comes from tells it. The proof is its PSN: a request has the expected
// one, or a response answers a packet that is outstanding. Only until then can another
// user of the peer's host try to guess the PSN, and the queue pair number if it is not
// known. SMC-R exchanges such packets as soon as the queue pairs are connected (CONFIRM
// LINK).
//
// The port belongs to the queue pair, with all known peers. A device of this package has
// sockets that no other user can have (see [sourcePorts]). In Linux, soft-RoCE and the
// drivers of adapters choose the port when the queue pair becomes ready to receive, from
// the flow label or from both queue pair numbers (rdma_get_udp_sport). It can only change
// when the address vector changes, for which the queue pair must be drained or migrate to
// an alternate path. SMC-R does neither. If a peer changes the port nevertheless, the
// queue pairs fail after their retries, as on a path that is interrupted. [forgeryLog]
// says why, and SMC-R continues on another link. To follow the change would let each user
// of the peer's host take over the queue pair.
//
// 0 means that the port is not known. Packets of version 1 have no port.
type peerPort uint16

// accepts reports whether the queue pair takes a packet with this source port.
func (p peerPort) accepts(port uint16) bool { return p == 0 || p == peerPort(port) }

// proved is called for each packet that proves that it is from the peer.
func (p *peerPort) proved(port uint16) { *p = peerPort(port) }
