// SPDX-License-Identifier: Apache-2.0

/*
 * The programs that stand in the path of a host's own TCP connections: doc.go of package divert
 * has the whole. Each file uses those above it:
 *
 *	maps.h		types, and maps
 *	shift.h		numbers of connections that pass again
 *	undecided.h	how many connections of servers may be undecided
 *	stack.h		whether there is a stack, and what is counted
 *	packet.h	headers, options, checksums
 *	shifted.h	a packet goes on with other numbers
 *	option.h	what is appended to SYN and SYN-ACK
 *	socket.h	whose a packet is
 *	shares.h	how many connections each user may have
 *	peers.h		what is known of peers and places
 *	begin.h		a connection is announced
 *	leaving.h	program: what leaves the host
 *	arriving.h	program: what comes
 *	this file	programs: what the stack sends, and what it has held
 *
 * While a stack takes over from another one, or after one was killed, a device has the programs of several, one after
 * the other in any order (TC_ACT_UNSPEC goes on to the next). One of them takes new connections. Each leaves alone what
 * has no entry in its tables.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "maps.h"
#include "shift.h"
#include "undecided.h"
#include "stack.h"
#include "packet.h"
#include "shifted.h"
#include "option.h"
#include "socket.h"
#include "shares.h"
#include "peers.h"
#include "begin.h"
#include "leaving.h"
#include "arriving.h"

/* to_program sends a packet to a program, as if it had come by the device. */
static __always_inline int to_program(struct __sk_buff *skb, __u32 dev)
{
	skb->mark = mark;
	return bpf_redirect(dev, BPF_F_INGRESS);
}

/* sent sees what the stack's sockets send. */
SEC("tc")
int sent(struct __sk_buff *skb)
{
	struct packet p;
	if (!parse(skb, 1, &p))
		return TC_ACT_SHOT;
	struct way *w = bpf_map_lookup_elem(&ways, &p.t);
	if (w) /* outer, to the peer */
		return bpf_redirect_neigh(w->via.dev, 0, 0, 0);
	if (!parse(skb, 0, &p))
		return TC_ACT_SHOT;
	w = bpf_map_lookup_elem(&ways, &p.t);
	if (!w || !is_split(w))
		return TC_ACT_SHOT;
	return to_program(skb, w->via.dev);
}

/* The destination of a frame that the stack writes says for whom it is, and by which device it goes. */
enum { FOR_PROGRAM = 1, FOR_STACK, FOR_PEER };
struct destination {
	__u8 local;	/* the bit of locally administered addresses */
	__u8 whom;
	__be32 dev;
} __attribute__((packed));

/*
 * renewed_here sees a SYN of a program that has waited for the end of another connection with the same addresses and ports. It reports
 * whether that goes on.
 */
static __always_inline int renewed_here(struct __sk_buff *skb)
{
	struct packet p;
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !parse(skb, 1, &p) || !p.h.syn || p.h.ack || bpf_map_lookup_elem(&ways, &p.t))
		return 1;
	int is = renew(skb, &p, s);
	if (is >= 0)
		return is == TC_ACT_OK;
	struct flow *f = bpf_map_lookup_elem(&flows, &p.t);
	if (f && !f->server && f->isn == bpf_ntohl(p.h.seq) && !dead())
		announce(skb, &p, 0); /* sent again */
	return 1;
}

/* renewed_by_peer sees a SYN of a peer that has waited likewise. */
static __always_inline void renewed_by_peer(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, 0, &p) && p.h.syn && !p.h.ack && !bpf_map_lookup_elem(&ways, &p.t))
		came_syn(skb, &p, 0);
}

/* let_go sees the packets that the stack has held. */
SEC("tc")
int let_go(struct __sk_buff *skb)
{
	struct destination to;
	if (bpf_skb_load_bytes(skb, 0, &to, sizeof(to)))
		return TC_ACT_SHOT;
	switch (to.whom) {
	case FOR_STACK:
		return bpf_redirect(veth, 0);
	case FOR_PEER:
		return renewed_here(skb) ? bpf_redirect_neigh(bpf_ntohl(to.dev), 0, 0, 0) : TC_ACT_SHOT;
	case FOR_PROGRAM:
		renewed_by_peer(skb);
		return to_program(skb, bpf_ntohl(to.dev));
	}
	return TC_ACT_SHOT;
}

/* received is at the stack's end of veth: whatever the address, it is for this host. */
SEC("tc")
int received(struct __sk_buff *skb)
{
	bpf_skb_change_type(skb, PACKET_HOST);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual MIT/GPL";
