// SPDX-License-Identifier: Apache-2.0

/*
 * The programs that stand in the path of a host's own TCP connections: doc.go of package divert
 * has the whole. Maps that a program writes are not written by user space, and the reverse, but for
 * deletion, so neither overwrites what the other has just written. A value of map ways has one writer after the other.
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

/* Set before the programs are loaded. */
volatile const __u32 veth;	/* ifindex of this end of the way to the stack's sockets */
volatile const __u32 hold;	/* ifindex of the device of held packets */
volatile const __u32 mark;	/* of packets that come from the stack, until the device has seen them */
volatile const __u32 per_user;	/* how many flows a user other than root may have */
volatile const __u32 of_root;	/* how many root may have */
volatile const __u32 of_all;	/* how many all may have */
volatile const __u32 last;	/* how many of these are for users who have few */
volatile const __u32 quiet_sets;	/* how many sets of seats a user has in map quiet */
volatile const __u32 plain_sets;	/* and in map plains */
volatile const __u32 undecided_most;	/* how many connections of servers may be undecided */
volatile const __u64 seed;	/* of the hash that says where they are counted: nobody knows it */

/*
 * A place in a map that holds so much of each user and no more: the seats of a user come in sets, and what is kept may be in
 * those of one set. If all of these are taken, it takes that of another thing of the same user.
 */
#define SEATS 4
struct seat {
	__u32 account;	/* the user to whom it is charged */
	__u32 at;
};

/* What a socket of a cgroup does: the bits of the values of cgroups. */
#define CONNECTS 1
#define ACCEPTS 2
#define ALWAYS 4	/* announces also where many connections were too short */

/* Where a packet of a program goes next: a device, and the Ethernet address there. */
struct hop {
	__u32 dev;
	__u8 mac[8];	/* the last two are 0 */
};

/* A connection, as this host sees it. IPv4 addresses are IPv4-mapped. */
struct tuple {
	__u8 local[16], remote[16];
	__be16 lport, rport;
};

/* A TCP header with its options: 60 bytes, and what makes any index of 6 bits right. */
struct header {
	__u8 len;
	__u8 b[64];
};

/* From where a peer comes: the Ethernet address of a neighbour, or a network behind a router. The rest is 0. */
struct origin {
	__u8 net[16];	/* IPv4 is IPv4-mapped */
	__u8 mac[8];	/* the last two are 0 */
};

/* Where a connection of a server is counted while it is undecided: see undecided.h. */
#define FLOW_SLOTS 6
#define NO_SLOT 0xffffffff

/* A connection that this host has announced. Programs write it. */
struct flow {
	__u64 id;
	__u64 cookie;	/* of the socket; of a server, that of the socket that accept() will return */
	__u64 cgroup;	/* the one in cgroups that the socket is in or below */
	__u32 uid;
	__u32 account;	/* the user to whom it is charged */
	struct hop via;	/* of the packet that announced it */
	__u32 isn;	/* sequence numbers of the SYN of this side and of the other one */
	__u32 peer_isn;	/* of a client: not known */
	struct origin from;	/* of a server */
	__u32 slots[FLOW_SLOTS];	/* likewise, or NO_SLOT */
	__u8 server;
	__u8 held;
	struct header own;	/* SYN of a client, SYN-ACK of a server, before the option was added */
	struct header peer;	/* SYN, of a server */
};

/*
 * Where the packets of a flow go. The program makes it, user space writes it until it is SPLIT, and then the program alone.
 * PROBED is a client's that stays TCP: they go as they do, and the end of its handshake takes the probe along. FROZEN is
 * SPLIT, but packets lose their data.
 */
enum { HELD, OUTER, SPLIT, PROBED, FROZEN };
struct way {
	__u32 state;
	__u32 isn;
	struct hop via;	/* of the last packet of the program; what it receives comes as if by this device, and what outer sends goes by it */
	__u64 asked[2];	/* when a SYN last went to the stack: of the program, and of the peer */
};

/*
 * How long the next SYNs with the addresses of a connection that there is do not go to the stack, in nanoseconds: a flood would keep it
 * from the packets of others. It is less than until TCP repeats one.
 */
#define ASKED_FOR (300ull * 1000 * 1000)

/* A SYN of a peer with the option. */
struct syn {
	__u32 seq;
	__u32 plain;	/* it was answered without the option, and stays so */
	struct header h;
};

/* A peer at one of its ports, as one user of this host knows it: what the connections of a user have shown holds for that user alone. */
struct peer {
	__u32 uid;
	__u8 addr[16];
	__be16 port;
	__u16 unused;
};

/* How long nothing is announced where options are copied, in nanoseconds. */
#define COPIED_FOR (60ull * 1000 * 1000 * 1000)

/* Why the connections of the sockets of an attached cgroup are TCP: peer diagnosis codes (RFC 7609, appendix A.3), and those of package smc. */
#define REFUSED 0	/* the peer reset it before it existed */
#define NO_MEMORY 0x01010000
#define NO_OPTION 0x03010000
#define COPIED 0x03fb0000
#define UNFIT_SOCKET 0x03060000	/* options of TCP that SMC does not go with */
#define SHORT 0x03fe0000
#define MUTE 0x03f90000
struct tally {
	__u64 cgroup;
	__u32 why;
	__u32 server;	/* the side of this host */
};

/* Why the connection of a socket is TCP, and whose it is. */
struct plain {
	__u64 cookie;
	__u64 cgroup;
	__u32 uid;
	__u32 why;
	__u32 code;	/* as in silence */
	__u32 unused;
};

/*
 * Whose a listening socket is that was made in another cgroup, and that programs were started with: those of cgroups
 * that are attached no more do not count.
 */
#define OWNERS 4
struct owner {
	__u64 cgroup;	/* of the program; 0: none */
	__u32 uid;
	__u32 unused;
};
struct owners {
	struct owner of[OWNERS];	/* the latest one first */
};

/* What is charged to a user: flows, and those of clients and of servers that are only announced. */
struct count {
	__u64 all;
	__u64 waits[2];
};

/* Users whose flows are charged to another one. */
struct ids {
	__u32 bits;	/* of what follows */
	__be32 uid;
};

/* Where SMC-R is possible: a device, or 0 for any, and addresses of peers by it. IPv4 addresses are IPv4-mapped. */
struct place {
	__u32 bits;	/* of what follows */
	__u32 dev;
	__u8 addr[16];
};

/* A bit of what map places says, beside the reason: who has these addresses is a neighbour. */
#define NEIGHBOUR 0x80000000

/* Until when nothing is announced, as bpf_ktime_get_ns has it, and why. With again, the first connection after that is announced, and the others are not for so long. */
struct silence {
	__u64 until;
	__u64 again;
	__u32 why;
	__u32 code;	/* the reason of the peer, if that has declined, or 0: it is shown, and nothing is counted by it, as the peer chooses it */
};
struct known {
	struct peer peer;
	struct silence is;
};

struct flow_table { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tuple); __type(value, struct flow); };
struct flow_table flows SEC(".maps");
#define STACKS 16
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, STACKS); __type(key, __u32); __array(values, struct flow_table); } earlier SEC(".maps"); /* flows of the stacks before this one; user space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tuple); __type(value, struct way); } ways SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct tuple); __type(value, struct syn); } syns SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct tuple); __type(value, struct flow); } renewed SEC(".maps"); /* connections of clients whose SYN waits for the end of another one with the same addresses and ports: they are announced when the stack lets the SYN go */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4096); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u64); __type(value, __u32); } cgroups SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u32); __type(value, struct count); } users SEC(".maps"); /* what was ever charged to a user; of these, what programs forgot is taken off. User space deletes those of users who have nothing */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u32); __type(value, struct count); } removed SEC(".maps"); /* what user space has removed of it */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } total SEC(".maps"); /* what was charged to all, likewise; user space has the rest in states */
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct ids); __type(value, __u32); } accounts SEC(".maps"); /* who answers for subordinate users; user space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tally); __type(value, __u64); } tallies SEC(".maps"); /* how often; user space deletes those of cgroups that are not attached any more */

struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 65536); __type(key, struct seat); __type(value, struct plain); } plains SEC(".maps"); /* why the connection of a socket is TCP: for listings */
struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct owners); } listeners SEC(".maps"); /* it is memory of the socket, and ends with it; user space writes it, and the next stack goes on with the same map */

/* What options finds. It is in memory, so that the verifier does not follow each value that it can have. */
struct found {
	__u32 at;	/* offset of the next option */
	__u32 has;
	__u32 where;	/* offset of the option of SMC */
	__u32 stamps, sack;	/* offsets of timestamps and of selective acknowledgements, or 0 */
};

struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 32768); __type(key, struct seat); __type(value, struct known); } quiet SEC(".maps"); /* both sides write it */
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct place); __type(value, __u32); } places SEC(".maps"); /* why SMC-R is not possible there, or 0, and NEIGHBOUR; user space writes it */
/* Until when the stack counts as alive, as bpf_ktime_get_ns has it, which it writes again and again; whether it takes new connections; and how many flows it has removed. */
enum { ALIVE, TAKES, REMOVED, STATES };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, STATES); __type(key, __u32); __type(value, __u64); } states SEC(".maps");

/* The device of held packets: the kernel removes it, and this entry, when the process that has it ends. */
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, 4); } holder SEC(".maps");

#include "shift.h"
#include "undecided.h"

/* Larger than what the stack of a program should have. */
struct scratch {
	struct flow flow;
	struct syn syn;
	struct found found;
	struct image image;
	struct counted counted;
};
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct scratch); } scratches SEC(".maps");

/* dead reports whether the stack has ended without a word, or stands still: it takes nothing new. */
static __always_inline int dead(void)
{
	__u32 key = ALIVE, zero = 0;
	__u64 *until = bpf_map_lookup_elem(&states, &key);
	return !until || bpf_ktime_get_ns() > *until || !bpf_map_lookup_elem(&holder, &zero);
}

/* takes reports whether the stack takes new connections. One that another stack has taken over from goes on with those that it has announced. */
static __always_inline int takes(void)
{
	__u32 key = TAKES;
	__u64 *on = bpf_map_lookup_elem(&states, &key);
	return on && *on && !dead();
}

/* note notes why a connection is TCP for its socket, and the code of its peer, in place of the oldest socket in the set: cookies count up. */
static __always_inline void note(const struct flow *f, __u32 why, __u32 code)
{
	struct plain p = { .cookie = f->cookie, .cgroup = f->cgroup, .uid = f->uid, .why = why, .code = code };
	__u32 first = (__u32)f->cookie % plain_sets * SEATS;
	struct seat s = { .account = f->account, .at = first }, best = s;
	__u64 oldest = ~0ull;
	for (__u32 i = 0; i < SEATS; i++) {
		s.at = first + i;
		struct plain *is = bpf_map_lookup_elem(&plains, &s);
		__u64 rank = !is ? 1 : is->cookie == p.cookie ? 0 : is->cookie + 1;
		if (rank < oldest) {
			oldest = rank;
			best.at = s.at;
		}
	}
	bpf_map_update_elem(&plains, &best, &p, BPF_ANY);
}

/* count_as counts a connection that is TCP, and notes that for its socket, with the code of its peer. */
static __always_inline void count_as(const struct flow *f, __u32 why, __u32 code)
{
	struct tally t = { .cgroup = f->cgroup, .why = why, .server = f->server };
	if (why)
		note(f, why, code);
	__u64 *n = bpf_map_lookup_elem(&tallies, &t);
	if (!n) {
		__u64 zero = 0;
		bpf_map_update_elem(&tallies, &t, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&tallies, &t);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* count is count_as for one of which the peer has said nothing. */
static __always_inline void count(const struct flow *f, __u32 why)
{
	count_as(f, why, 0);
}

/* A TCP packet. */
struct packet {
	struct tuple t;
	struct tcphdr h;
	__u32 ip, tcp;	/* offsets of the headers */
	__u32 len;	/* of the TCP segment by the IP header; 0 if it does not say */
	__u8 v6;
};

/* parse returns 0 for what is no TCP packet or a part of one, and for tagged packets: the VLAN device sees those again. */
static __always_inline int parse(struct __sk_buff *skb, int local_is_source, struct packet *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	if (skb->vlan_present)
		return 0;
	p->ip = ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(0x3fff) || ip.ihl < 5)
			return 0;
		p->tcp = ETH_HLEN + ip.ihl * 4;
		if (bpf_ntohs(ip.tot_len) > ip.ihl * 4)
			p->len = bpf_ntohs(ip.tot_len) - ip.ihl * 4;
		p->t.local[10] = p->t.local[11] = p->t.remote[10] = p->t.remote[11] = 0xff;
		__builtin_memcpy(&p->t.local[12], local_is_source ? &ip.saddr : &ip.daddr, 4);
		__builtin_memcpy(&p->t.remote[12], local_is_source ? &ip.daddr : &ip.saddr, 4);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return 0;
		p->v6 = 1;
		p->tcp = ETH_HLEN + sizeof(ip);
		p->len = bpf_ntohs(ip.payload_len);
		__builtin_memcpy(p->t.local, local_is_source ? &ip.saddr : &ip.daddr, 16);
		__builtin_memcpy(p->t.remote, local_is_source ? &ip.daddr : &ip.saddr, 16);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, p->tcp, &p->h, sizeof(p->h)) || p->h.doff < 5)
		return 0;
	p->t.lport = local_is_source ? p->h.source : p->h.dest;
	p->t.rport = local_is_source ? p->h.dest : p->h.source;
	return 1;
}

/* load copies the TCP header with its options. */
static __always_inline int load(struct __sk_buff *skb, const struct packet *p, struct header *h)
{
	__u32 n = p->h.doff * 4;
	if (n < 20)
		return 0;
	asm volatile("" : "+r"(n)); /* or the compiler makes one comparison of both, with another register: then Linux 6.1 does not know the least n */
	if (n > 60)
		return 0;
	__builtin_memset(h, 0, sizeof(*h));
	if (bpf_skb_load_bytes(skb, p->tcp, h->b, n))
		return 0;
	h->len = n;
	return 1;
}

/* What options a header has. */
#define ANNOUNCES 1	/* that of SMC */
#define PROBES 2	/* the probe, which only a device that copies options sends back */
#define UNFIT 4		/* one that covers the header, or makes the stream more than TCP: MD5, AO, MPTCP, fast open */

/* byte returns one byte of h. The compiler is kept from what the verifier could not follow. */
static __always_inline __u32 byte(const struct header *h, __u32 i)
{
	asm volatile("%0 &= 63" : "+r"(i));
	return h->b[i];
}

/* option takes one option. It returns 0 at the end of the list. */
static __always_inline int option(const struct header *h, volatile struct found *f)
{
	__u32 i = f->at;
	if (i >= h->len)
		return 0;
	__u32 kind = byte(h, i), len = byte(h, i + 1);
	if (kind == 0)
		return 0;
	if (kind == 1) {
		f->at = i + 1;
		return 1;
	}
	if (len < 2 || i + len > h->len)
		return 0;
	if (kind == 19 || kind == 29 || kind == 30 || kind == 34)
		f->has |= UNFIT;
	if (kind == 254 && len == 6) {
		__u32 ex = byte(h, i + 2) << 24 | byte(h, i + 3) << 16 | byte(h, i + 4) << 8 | byte(h, i + 5);
		if (ex == 0xe2d4c3d9) {
			f->where = i;
			f->has |= ANNOUNCES;
		}
		if (ex == 0x534d4372)
			f->has |= PROBES;
	}
	if (kind == 8 && len == 10)
		f->stamps = i;
	if (kind == 5)
		f->sack = i;
	f->at = i + len;
	return 1;
}

/* options returns what h has. */
static __always_inline int options(const struct header *h, volatile struct found *f)
{
	f->at = 20;
	f->has = f->where = f->stamps = f->sack = 0;
	for (int turn = 0; turn < 40; turn++)
		if (!option(h, f))
			break;
	return f->has;
}

/* sum updates the checksum of TCP after a change whose difference is d. */
static __always_inline void sum(struct __sk_buff *skb, const struct packet *p, __s64 d)
{
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), 0, d, 0);
}

/* erase overwrites the option of SMC at an offset of the TCP header: what this host has not announced must not leave it. */
static __always_inline void erase(struct __sk_buff *skb, const struct packet *p, __u32 where)
{
	__u32 odd = where & 3, off = p->tcp + where - odd;
	if (where > 54)
		return;
	/* The sum needs whole words: up to three have bytes of the option. */
	for (__u32 word = 0; word < 3 && word * 4 < odd + 6; word++, off += 4) {
		__u8 was[4], now[4];
		if (bpf_skb_load_bytes(skb, off, was, 4))
			return;
		for (__u32 i = 0; i < 4; i++)
			now[i] = word * 4 + i >= odd && word * 4 + i < odd + 6 ? 1 : was[i];
		if (bpf_skb_store_bytes(skb, off, now, 4, 0))
			return;
		sum(skb, p, bpf_csum_diff((__be32 *)was, 4, (__be32 *)now, 4, 0));
	}
}

/* has_data reports whether a packet has data, the end of a stream, or more than the IP header says. */
static __always_inline int has_data(const struct packet *p)
{
	return !p->len || p->len > p->h.doff * 4 || p->h.fin;
}

/* resize has the headers say that the TCP segment has another length. */
static __always_inline void resize(struct __sk_buff *skb, const struct packet *p, __u32 len)
{
	__be16 was, now = bpf_htons(len);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), bpf_htons(p->len), now, BPF_F_PSEUDO_HDR | 2);
	if (p->v6) {
		bpf_skb_store_bytes(skb, p->ip + offsetof(struct ipv6hdr, payload_len), &now, 2, 0);
		return;
	}
	was = bpf_htons(p->len + (p->tcp - p->ip));
	now = bpf_htons(len + (p->tcp - p->ip));
	bpf_l3_csum_replace(skb, p->ip + offsetof(struct iphdr, check), was, now, 2);
	bpf_skb_store_bytes(skb, p->ip + offsetof(struct iphdr, tot_len), &now, 2, 0);
}

/*
 * empty makes a packet the acknowledgement that it is beside its data. All words of a segment with those of its pseudo header
 * are 0xffff: that says the sum of the data, which is no longer there. It reports whether the packet can go on.
 */
static __always_inline int empty(struct __sk_buff *skb, const struct packet *p)
{
	__u32 zero = 0, n = p->h.doff * 4, off = p->tcp + 16;
	__be32 rest, was, now;
	__be16 flags;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x || !p->len || !p->h.ack || p->h.rst)
		return 0;
	struct image *m = &x->image;
	__builtin_memset(m, 0, sizeof(*m));
	if (n < 20)
		return 0;
	asm volatile("" : "+r"(n)); /* as in load */
	if (n > 60 || bpf_skb_load_bytes(skb, p->tcp, m->was, n))
		return 0;
	rest = bpf_htonl(IPPROTO_TCP + p->len);
	__s64 sums = bpf_csum_diff(0, 0, (__be32 *)m->was, sizeof(m->was), 0);
	sums = bpf_csum_diff(0, 0, (__be32 *)&p->t, 32, sums); /* what makes IPv4 addresses IPv4-mapped is 0xffff, which is 0 */
	sums = bpf_csum_diff(0, 0, &rest, 4, sums);
	if (p->len > p->h.doff * 4 && bpf_skb_change_tail(skb, p->tcp + p->h.doff * 4, 0))
		return 0;
	if (bpf_skb_load_bytes(skb, off, &was, 4))
		return 0;
	if (p->len > p->h.doff * 4)
		sum(skb, p, sums);
	if (bpf_skb_load_bytes(skb, off, &now, 4))
		return 0;
	bpf_csum_update(skb, bpf_csum_diff(&was, 4, &now, 4, 0));
	if (bpf_skb_load_bytes(skb, p->tcp + 12, &flags, 2))
		return 0;
	__be16 ack = flags & bpf_htons(0xfff6); /* neither FIN nor PSH */
	bpf_skb_store_bytes(skb, p->tcp + 12, &ack, 2, 0);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), flags, ack, 2);
	resize(skb, p, p->h.doff * 4);
	return 1;
}

/* is_split reports whether the packets of a program go to inner. */
static __always_inline int is_split(const struct way *w)
{
	return w->state == SPLIT || w->state == FROZEN;
}

/*
 * shifted has a packet of a connection go on with other numbers. The new header is made in memory: an option can begin
 * anywhere, and the checksum needs whole words.
 */
static __always_inline int shifted(struct __sk_buff *skb, const struct packet *p, struct shift *s, int leaves)
{
	__u32 zero = 0, n = p->h.doff * 4;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x || !load(skb, p, &x->syn.h))
		return TC_ACT_SHOT;
	struct image *m = &x->image;
	__builtin_memset(m, 0, sizeof(*m));
	if (n < 20)
		return TC_ACT_SHOT;
	asm volatile("" : "+r"(n)); /* as in load */
	if (n > 60)
		return TC_ACT_SHOT;
	if (bpf_skb_load_bytes(skb, p->tcp, m->was, n) || bpf_skb_load_bytes(skb, p->tcp, m->now, n))
		return TC_ACT_SHOT;
	__u32 acks = leaves ? -s->in : -s->out;
	add(m, 4, leaves ? s->out : s->in);
	if (p->h.ack)
		add(m, 8, acks);
	options(&x->syn.h, &x->found);
	__u32 at = x->found.sack;
	if (at) {
		__u32 len = byte(&x->syn.h, at + 1);
		for (__u32 i = 2; i + 4 <= 34; i += 4)
			if (i + 4 <= len)
				add(m, at + i, acks);
	}
	at = x->found.stamps;
	if (at && !leaves && !starts(s, &p->h))
		return TC_ACT_SHOT;
	__u32 end = bpf_ntohl(p->h.seq) + s->out + (skb->len - p->tcp - n) + p->h.fin;
	if (leaves && (__s32)(end - s->most) > 0)
		s->most = end;
	if (at)
		stamp(m, s, at + 2, leaves);
	if (bpf_skb_store_bytes(skb, p->tcp, m->now, n, 0))
		return TC_ACT_SHOT;
	sum(skb, p, bpf_csum_diff((__be32 *)m->was, sizeof(m->was), (__be32 *)m->now, sizeof(m->was), 0));
	return TC_ACT_UNSPEC;
}

/*
 * append adds options to a packet without payload. The helpers do what the packet needs: with
 * CHECKSUM_PARTIAL only the length of the pseudo header changes.
 */
static __always_inline int append(struct __sk_buff *skb, const struct packet *p, const __u8 *o, __u32 n)
{
	__u32 end = p->tcp + p->h.doff * 4, len = p->len + n;
	if (p->h.doff * 4 + n > 60 || p->len != p->h.doff * 4 || skb->len != end)
		return 0;
	if (bpf_skb_change_tail(skb, skb->len + n, 0))
		return 0;
	if (bpf_skb_store_bytes(skb, end, o, n, 0))
		return 0;
	__be16 was, now;
	if (bpf_skb_load_bytes(skb, p->tcp + 12, &was, 2))
		return 0;
	now = bpf_htons(bpf_ntohs(was) + (n / 4 << 12));
	bpf_skb_store_bytes(skb, p->tcp + 12, &now, 2, 0);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), was, now, 2);
	sum(skb, p, bpf_csum_diff(0, 0, (__be32 *)o, n, 0));
	resize(skb, p, len);
	return 1;
}

static const __u8 of_syn[12] = { 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 254, 6, 0x53, 0x4d, 0x43, 0x72 };
static const __u8 of_synack[8] = { 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1 };

static const __u8 of_probe[8] = { 254, 6, 0x53, 0x4d, 0x43, 0x72, 1, 1 };

static __always_inline int announce(struct __sk_buff *skb, const struct packet *p, int server)
{
	return server ? append(skb, p, of_synack, sizeof(of_synack)) : append(skb, p, of_syn, sizeof(of_syn));
}

/* hop finds out where a packet that leaves goes next. */
static __always_inline void hop(struct __sk_buff *skb, struct hop *h)
{
	__builtin_memset(h, 0, sizeof(*h));
	h->dev = skb->ifindex;
	bpf_skb_load_bytes(skb, 0, h->mac, ETH_ALEN);
}

/* connecting reports whether a packet is of a TCP socket at the begin of its handshake: a raw socket has another state. */
static __always_inline int connecting(struct __sk_buff *skb, int server)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return 0; /* of SYN cookies, or of another host */
	return sk->state == (server ? BPF_TCP_NEW_SYN_RECV : BPF_TCP_SYN_SENT);
}

/* first reports whether a SYN of a connecting socket is its first one: if that was not announced, its SYN-ACK may be on the way. */
static __always_inline int first(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 0;
	struct bpf_tcp_sock *tp = bpf_tcp_sock(sk);
	return tp && !tp->total_retrans;
}

/* attached returns the cgroup in cgroups that the socket of a packet is in, the innermost one if it is in several, and what that does; or 0. */
static __always_inline __u64 attached(struct __sk_buff *skb, __u32 *does)
{
	__u64 in = 0;
	for (int level = 0; level < 16; level++) {
		__u64 id = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!id)
			break;
		__u32 *found = bpf_map_lookup_elem(&cgroups, &id);
		if (found) {
			in = id;
			*does = *found;
		}
	}
	return in;
}

/*
 * inherited returns the cgroup of the program that was started with the listening socket of a SYN-ACK, what that does, and its
 * user; or 0.
 */
static __always_inline __u64 inherited(struct __sk_buff *skb, __u32 *does, __u32 *uid)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return 0;
	sk = bpf_get_listener_sock(sk);
	if (!sk)
		return 0;
	struct owners *all = bpf_sk_storage_get(&listeners, sk, 0, 0);
	if (!all)
		return 0;
	for (int i = 0; i < OWNERS; i++) {
		__u64 id = all->of[i].cgroup;
		__u32 *found = id ? bpf_map_lookup_elem(&cgroups, &id) : 0;
		if (found) {
			*does = *found;
			*uid = all->of[i].uid;
			return id;
		}
	}
	return 0;
}

/* account returns the user who answers for another one. */
static __always_inline __u32 account(__u32 uid)
{
	struct ids k = { .bits = 32, .uid = bpf_htonl(uid) };
	__u32 *owner = bpf_map_lookup_elem(&accounts, &k);
	return owner ? *owner : uid;
}

/* rest returns what there is of n if gone was removed. An entry that user space deletes while a program writes it may lack one. */
static __always_inline __u64 rest(__u64 n, __u64 gone)
{
	__s64 is = n - gone;
	return is > 0 ? is : 0;
}

/* left returns how many flows can still be announced. */
static __always_inline __u64 left(void)
{
	__u32 zero = 0, key = REMOVED;
	__u64 *n = bpf_map_lookup_elem(&total, &zero), *gone = bpf_map_lookup_elem(&states, &key);
	if (!n || !gone)
		return 0;
	return rest(of_all, rest(*n, *gone));
}

/*
 * may reports whether a user may have one more flow. Who takes all that there is leaves some for the next user, whoever comes
 * last: from the second one on, a user has no more than is then left for all others, above the last places. Of these, a user
 * has no more than a small part, or one. Those that are only announced are half of what a user may have: so a peer that floods a
 * server, or hosts that do not answer, leave the rest.
 */
#define PART 256
static __always_inline int may(__u32 uid, int server)
{
	__u64 most = uid ? per_user : of_root, all, waits, free = left();
	struct count *n = bpf_map_lookup_elem(&users, &uid), *gone = bpf_map_lookup_elem(&removed, &uid);
	all = rest(n ? n->all : 0, gone ? gone->all : 0);
	if (server)
		waits = rest(n ? n->waits[1] : 0, gone ? gone->waits[1] : 0);
	else
		waits = rest(n ? n->waits[0] : 0, gone ? gone->waits[0] : 0);
	if (!free || all >= most || waits >= (most + 1) / 2)
		return 0;
	return !uid || !all || all + 1 < rest(free, last) || all < free / PART;
}

/* count_in adds to what is charged to a user, and to all. It returns 0 if there is no room to note that. */
static __always_inline int count_in(__u32 uid, int server, __s64 all, __s64 waits)
{
	__u32 zero = 0;
	__u64 *sum = bpf_map_lookup_elem(&total, &zero);
	struct count *n = bpf_map_lookup_elem(&users, &uid);
	if (!n && all > 0) {
		struct count none = {};
		bpf_map_update_elem(&users, &uid, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&users, &uid);
	}
	if (!sum || (!n && all > 0))
		return 0;
	__sync_fetch_and_add(sum, all);
	if (!n)
		return 1;
	__sync_fetch_and_add(&n->all, all);
	if (server)
		__sync_fetch_and_add(&n->waits[1], waits);
	else
		__sync_fetch_and_add(&n->waits[0], waits);
	return 1;
}

/* charge counts a flow of a user. It returns 0 if that may have no more. */
static __always_inline int charge(__u32 uid, int server)
{
	return may(uid, server) && count_in(uid, server, 1, 1);
}

/* drop removes a flow. With undecided, it was not decided. */
static __noinline void drop(const struct tuple *t, const struct flow *f, int undecided)
{
	__u32 uid = f->account, server = f->server, held = f->held; /* the kernel may use it for another one at once */
	__u32 slots[FLOW_SLOTS];
	__builtin_memcpy(slots, f->slots, sizeof(slots));
	if (bpf_map_delete_elem(&flows, t))
		return;
	count_in(uid, server, -1, held ? 0 : -1);
	if (undecided && server)
		weigh(slots, -1);
}

/* forget removes a flow that user space has nothing of. What was held, that decides. */
static __always_inline void forget(const struct tuple *t, const struct flow *f)
{
	drop(t, f, !f->held);
}

#define PEER_WORDS (sizeof(struct peer) / sizeof(__u32))

/* first_seat returns the first of the seats that what is known of a peer may have. seats.go has the same. */
static __always_inline __u32 first_seat(const struct peer *p)
{
	const __u32 *w = (const __u32 *)p;
	__u64 h = 0;
	for (__u32 i = 0; i < PEER_WORDS; i++) {
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 32;
	}
	return (__u32)h % quiet_sets * SEATS;
}

/* is_peer reports whether both are the same, by one comparison: the verifier follows each. */
static __always_inline int is_peer(const struct peer *a, const struct peer *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	__u32 d = 0;
	for (__u32 i = 0; i < PEER_WORDS; i++)
		d |= x[i] ^ y[i];
	return !d;
}

/* silent reports why a connection of a user is not announced to its peer, and the code of that, or 0: nothing is known against it. */
static __always_inline __u32 silent(const struct flow *f, const struct tuple *t, __u32 *code)
{
	struct peer p = { .uid = f->uid, .port = t->rport };
	__builtin_memcpy(p.addr, t->remote, sizeof(p.addr));
	struct seat s = { .account = f->account };
	__u32 first = first_seat(&p);
	for (__u32 i = 0; i < SEATS; i++) {
		s.at = first + i;
		struct known *k = bpf_map_lookup_elem(&quiet, &s);
		if (!k || !is_peer(&k->peer, &p))
			continue;
		__u64 now = bpf_ktime_get_ns();
		if (now < k->is.until) {
			*code = k->is.code;
			return k->is.why;
		}
		if (k->is.again)
			k->is.until = now + k->is.again; /* two at once may both see that it is over */
		break;
	}
	return 0;
}

/* silence has nothing announced to the peer of a flow for a time, in place of what ends first of the others in the set. */
static __always_inline void silence(const struct flow *f, const struct tuple *t, __u32 why, __u64 time)
{
	struct known k = { .peer = { .uid = f->uid, .port = t->rport }, .is = { .until = bpf_ktime_get_ns() + time, .why = why } };
	__builtin_memcpy(k.peer.addr, t->remote, sizeof(k.peer.addr));
	struct seat s = { .account = f->account }, best = s;
	__u32 first = first_seat(&k.peer);
	__u64 soonest = ~0ull;
	for (__u32 i = 0; i < SEATS; i++) {
		s.at = first + i;
		struct known *is = bpf_map_lookup_elem(&quiet, &s);
		__u64 end = !is ? 1 : is_peer(&is->peer, &k.peer) ? 0 : is->is.until + is->is.again;
		if (end < soonest) {
			soonest = end;
			best.at = s.at;
		}
	}
	bpf_map_update_elem(&quiet, &best, &k, BPF_ANY);
}

/* impossible reports why SMC-R is not possible with a peer by a device, or 0: nothing is known against it; and whether it is a neighbour. */
static __always_inline __u32 impossible(__u32 dev, const struct tuple *t, int *near)
{
	struct place p = { .bits = 8 * (sizeof(p) - sizeof(p.bits)), .dev = dev };
	__builtin_memcpy(p.addr, t->remote, sizeof(p.addr));
	__u32 *why = bpf_map_lookup_elem(&places, &p), is = why ? *why : 0;
	*near = is & NEIGHBOUR ? 1 : 0;
	if (is & ~NEIGHBOUR)
		return is & ~NEIGHBOUR;
	p.dev = 0;
	why = bpf_map_lookup_elem(&places, &p);
	return why ? *why & ~NEIGHBOUR : 0;
}

/* elsewhere reports whether a stack before this one has announced the SYN, or SYN-ACK, with a sequence number: the connection is that one's. */
static __always_inline int elsewhere(const struct tuple *t, __u32 isn)
{
	for (__u32 i = 0; i < STACKS; i++) {
		__u32 key = i;
		void *table = bpf_map_lookup_elem(&earlier, &key);
		if (!table)
			continue;
		struct flow *f = bpf_map_lookup_elem(table, t);
		if (f && f->isn == isn)
			return 1;
	}
	return 0;
}

/* stays_plain has a SYN-ACK that is sent again go without the option, as the first one did: the client may have had that. */
static __always_inline void stays_plain(struct syn *syn)
{
	if (syn)
		syn->plain = 1;
}

/* enters notes a connection, and announces it: it reports whether both was possible. */
static __always_inline int enters(struct __sk_buff *skb, const struct packet *p, struct flow *f, int server)
{
	if (!charge(f->account, server)) {
		count(f, NO_MEMORY);
		return 0;
	}
	f->id = bpf_ktime_get_ns() << 1 | server; /* never 0, and another one for the next flow of the tuple */
	if (server)
		weigh(f->slots, 1);
	if (bpf_map_update_elem(&flows, &p->t, f, BPF_NOEXIST)) {
		count_in(f->account, server, -1, -1);
		if (server)
			weigh(f->slots, -1);
		count(f, NO_MEMORY);
		return 0;
	}
	if (announce(skb, p, server))
		return 1;
	forget(&p->t, f);
	return 0;
}

/*
 * begin announces a connection: its SYN, or SYN-ACK, has the option from now on. The option of a packet that is of no
 * connecting socket is erased. That of one that is was announced by another stack at this device, or by the kernel. With waits, a connection
 * with the same addresses and ports has not ended yet: see renew.
 */
static __always_inline void begin(struct __sk_buff *skb, const struct packet *p, struct scratch *s, int server, int waits)
{
	struct flow *f = &s->flow;
	__builtin_memset(f, 0, sizeof(*f));
	if (!load(skb, p, &f->own))
		return;
	int has = options(&f->own, &s->found);
	struct syn *syn = 0;
	int plain = 0;
	if (server) {
		syn = bpf_map_lookup_elem(&syns, &p->t);
		if (syn && syn->seq + 1 != bpf_ntohl(p->h.ack_seq))
			syn = 0;
		plain = syn && syn->plain;
	}
	__u32 does = 0;
	int mine = takes(), real = connecting(skb, server);
	f->server = server;
	f->uid = bpf_get_socket_uid(skb);
	if (mine && real && server)
		f->cgroup = inherited(skb, &does, &f->uid);
	if (mine && real && !f->cgroup && (server || first(skb)))
		f->cgroup = attached(skb, &does);
	if (has & ANNOUNCES && mine && !real)
		erase(skb, p, s->found.where);
	if (plain || !(does & (server ? ACCEPTS : CONNECTS)) || has & ANNOUNCES || elsewhere(&p->t, bpf_ntohl(p->h.seq)))
		return;
	f->cookie = bpf_get_socket_cookie(skb);
	f->account = account(f->uid);
	if (server && !syn) {
		note(f, NO_OPTION, 0); /* or one that it does not go with; not counted: many clients are not meant for SMC */
		return;
	}
	int near = 0, met = 0;
	__u32 code = 0, why = impossible(skb->ifindex, &p->t, &near);
	if (has & UNFIT)
		why = UNFIT_SOCKET;
	hop(skb, &f->via);
	if (!why && !server)
		why = silent(f, &p->t, &code);
	if (!why && server) {
		met = originate(&f->from, &p->t, &f->via, p->v6, near);
		if (mute(&f->from))
			why = MUTE;
		else if (!admit(f, &s->counted, met) || !has_room(skb, f, &s->counted, met))
			why = NO_MEMORY;
	}
	if (why == SHORT && does & ALWAYS)
		why = 0;
	if (why) {
		count_as(f, why, code);
		stays_plain(syn);
		return;
	}
	f->isn = bpf_ntohl(p->h.seq);
	if (syn) {
		f->peer_isn = syn->seq;
		f->peer = syn->h;
	}
	if (waits)
		bpf_map_update_elem(&renewed, &p->t, f, BPF_ANY);
	else if (!enters(skb, p, f, server))
		stays_plain(syn);
}

/* went notes by which way a packet of a program went, if that is another one than before. */
static __always_inline void went(struct __sk_buff *skb, struct way *w)
{
	struct hop h;
	hop(skb, &h);
	const __u32 *is = (__u32 *)h.mac, *was = (__u32 *)w->via.mac;
	if (h.dev != w->via.dev || is[0] != was[0] || is[1] != was[1])
		w->via = h;
}

/*
 * reject makes a SYN-ACK that is sent again the reset of the connection: the peer was told of SMC, and nobody is left who
 * speaks it. What it sends would be data for the program. It has no ACK: so it ends the connection of the peer's stack, which has
 * taken the SYN-ACK, and not the connect() of a program whose stack has given up, and which sends SYN again. It still has the option: see late.
 */
static __always_inline void reject(struct __sk_buff *skb, const struct packet *p)
{
	__u32 check = p->tcp + offsetof(struct tcphdr, check);
	__be32 seq = bpf_htonl(bpf_ntohl(p->h.seq) + 1);
	__be16 was, now;
	if (bpf_skb_load_bytes(skb, p->tcp + 12, &was, 2))
		return;
	now = (was & bpf_htons(0xff00)) | bpf_htons(0x04); /* RST */
	bpf_skb_store_bytes(skb, p->tcp + 12, &now, 2, 0);
	bpf_l4_csum_replace(skb, check, was, now, 2);
	bpf_skb_store_bytes(skb, p->tcp + offsetof(struct tcphdr, seq), &seq, 4, 0);
	bpf_l4_csum_replace(skb, check, p->h.seq, seq, 4);
}

/*
 * late reports whether a packet is a reset that reject has made on the host of the peer, for a stack that has given up already. The program
 * may have another connection meanwhile, with the same number: SYN and SYN-ACK are both sent again a second after the first ones. What has
 * no socket here is forwarded, perhaps to a stack that has not given up.
 */
static __always_inline int late(struct __sk_buff *skb, const struct packet *p)
{
	__u32 zero = 0;
	if (!p->h.rst || p->h.ack || p->h.syn)
		return 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !load(skb, p, &s->syn.h) || !(options(&s->syn.h, &s->found) & ANNOUNCES))
		return 0;
	struct bpf_sock_tuple t = {};
	if (p->v6) {
		__builtin_memcpy(t.ipv6.saddr, p->t.remote, 16);
		__builtin_memcpy(t.ipv6.daddr, p->t.local, 16);
		t.ipv6.sport = p->t.rport;
		t.ipv6.dport = p->t.lport;
	} else {
		__builtin_memcpy(&t.ipv4.saddr, p->t.remote + 12, 4);
		__builtin_memcpy(&t.ipv4.daddr, p->t.local + 12, 4);
		t.ipv4.sport = p->t.rport;
		t.ipv4.dport = p->t.lport;
	}
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &t, p->v6 ? sizeof(t.ipv6) : sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	bpf_sk_release(sk);
	return 1;
}

/*
 * probed sees what a client sends whose SYN-ACK had the probe. A server behind what copies options would wait for
 * PROPOSAL: the end of the handshake tells it not to. If that has data, the data does.
 */
static __always_inline void probed(struct __sk_buff *skb, const struct packet *p, const struct way *w)
{
	__u32 isn = w->isn;
	struct flow *f = bpf_map_lookup_elem(&flows, &p->t);
	bpf_map_delete_elem(&ways, &p->t);
	if (f)
		forget(&p->t, f);
	if (p->h.ack && !p->h.syn && !p->h.rst && !p->h.fin && bpf_ntohl(p->h.seq) == isn + 1)
		append(skb, p, of_probe, sizeof(of_probe));
}

/* asks has the stack see a SYN with the addresses of a connection that there is, unless it has just seen one. */
static __always_inline int asks(__u64 *last_time)
{
	__u64 now = bpf_ktime_get_ns();
	if (now - *last_time < ASKED_FOR)
		return TC_ACT_STOLEN;
	*last_time = now;
	return bpf_redirect(hold, 0);
}

/* leaving sees what leaves the host by a device, but for what the stack sends. */
SEC("tc")
int leaving(struct __sk_buff *skb)
{
	struct packet p;
	if (skb->ingress_ifindex == veth || skb->ingress_ifindex == hold || !parse(skb, 1, &p))
		return TC_ACT_UNSPEC;
	/* What did not come from a socket of this host, as what a container sends with its address, has to do with no connection of it. */
	int foreign = skb->ingress_ifindex != 0;
	struct way *w = bpf_map_lookup_elem(&ways, &p.t);
	if (w && foreign)
		return TC_ACT_SHOT;
	if (w && w->state == PROBED && (!p.h.syn || bpf_ntohl(p.h.seq) != w->isn)) {
		probed(skb, &p, w);
		if (!p.h.syn)
			return TC_ACT_UNSPEC;
		w = 0; /* another connection */
	}
	if (w && w->state == PROBED)
		return TC_ACT_UNSPEC; /* sent again, while its answer is on the way to the program */
	if (w && !is_split(w) && dead()) {
		/* The program's connection is made again, without SMC: by its SYN, or by that of the peer after a reset. */
		struct flow *f = bpf_map_lookup_elem(&flows, &p.t);
		bpf_map_delete_elem(&ways, &p.t);
		if (f && f->server && p.h.syn && bpf_ntohl(p.h.seq) == f->isn)
			reject(skb, &p);
		if (f)
			drop(&p.t, f, 1);
		return TC_ACT_UNSPEC;
	}
	/* A SYN, or SYN-ACK, that is sent again waits for what the stack holds, or what it let go was lost. Any other one is of a new connection. */
	int new = w && p.h.syn && bpf_ntohl(p.h.seq) != w->isn;
	if (new && p.h.ack)
		return asks(&w->asked[0]);
	if (w && !new) {
		went(skb, w);
		if (p.h.syn && is_split(w))
			return asks(&w->asked[0]);
		if (!is_split(w) || (w->state == FROZEN && has_data(&p) && !empty(skb, &p)))
			return TC_ACT_STOLEN; /* that it is lost must not be known: TCP forgets a connection whose SYN-ACK cannot be sent again */
		return bpf_redirect(veth, 0);
	}
	struct shift *by = w ? 0 : shift_of(&p.t);
	if (by && foreign)
		return TC_ACT_SHOT;
	if (by && !p.h.syn)
		return shifted(skb, &p, by, 1);
	if (by && bpf_ntohl(p.h.seq) != by->isn)
		bpf_map_delete_elem(&shifts, &p.t); /* a new connection: the kernel has none any more with these ports */
	if (!p.h.syn)
		return TC_ACT_UNSPEC;
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s)
		return TC_ACT_UNSPEC;
	struct flow *f = w ? 0 : bpf_map_lookup_elem(&flows, &p.t);
	if (f && !foreign) {
		if (f->isn == bpf_ntohl(p.h.seq) && f->server == p.h.ack && !dead()) {
			/* Sent again, perhaps by another device; or this is a device below the one that has announced it; or an earlier stack has held it. */
			if (load(skb, &p, &s->flow.own) && !(options(&s->flow.own, &s->found) & ANNOUNCES) && announce(skb, &p, f->server))
				hop(skb, &f->via);
			return TC_ACT_UNSPEC;
		}
		forget(&p.t, f);
	}
	begin(skb, &p, s, p.h.ack, w != 0);
	return w ? asks(&w->asked[0]) : TC_ACT_UNSPEC;
}

/* passes says where all packets of a flow go from now on. */
static __always_inline int passes(const struct tuple *t, const struct flow *f, __u32 state)
{
	struct way w = { .state = state, .isn = f->isn, .via = f->via };
	return !bpf_map_update_elem(&ways, t, &w, BPF_NOEXIST);
}

/* holds has all packets of a flow go to the stack from now on. */
static __always_inline int holds(const struct tuple *t, struct flow *f)
{
	if (!passes(t, f, HELD))
		return 0;
	f->held = 1;
	count_in(f->account, f->server, 0, -1);
	return 1;
}

/*
 * came_syn sees a SYN of a peer, and reports whether it is for the kernel. held is the way of a connection of which a dead stack holds the
 * end of the handshake, or 0. The SYN of such a connection without the option is of a program whose stack has given up: it is TCP.
 */
static __always_inline int came_syn(struct __sk_buff *skb, const struct packet *p, const struct way *held)
{
	__u32 zero = 0, has = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (s && load(skb, p, &s->syn.h) && p->len == s->syn.h.len)
		has = options(&s->syn.h, &s->found);
	int announces = has & ANNOUNCES && !(has & UNFIT);
	__u32 seq = bpf_ntohl(p->h.seq);
	struct flow *f = bpf_map_lookup_elem(&flows, &p->t);
	if (held) {
		if (announces || !f || !f->server || f->peer_isn != seq)
			return 0;
		bpf_map_delete_elem(&ways, &p->t);
		drop(&p->t, f, 1);
		return 1;
	}
	if (f && !f->server) { /* both connect at once */
		forget(&p->t, f);
		return 1;
	}
	if (f && f->peer_isn == seq) {
		if (announces)
			return 1; /* sent again */
		forget(&p->t, f);
	}
	/* One with another number may be forged: what was announced is forgotten when the kernel answers it. */
	struct syn *known = bpf_map_lookup_elem(&syns, &p->t);
	if (known && known->seq == seq && known->plain)
		return 1;
	if (!announces || !s || !takes()) {
		bpf_map_delete_elem(&syns, &p->t); /* the same one may have come with the option before */
		return 1;
	}
	s->syn.seq = seq;
	s->syn.plain = 0;
	bpf_map_update_elem(&syns, &p->t, &s->syn, BPF_ANY);
	return 1;
}

/* came_synack sees the SYN-ACK for a SYN that was announced. It reports whether it is held. */
static __always_inline int came_synack(struct __sk_buff *skb, const struct packet *p, struct flow *f)
{
	__u32 zero = 0;
	if (f->server || bpf_ntohl(p->h.ack_seq) != f->isn + 1)
		return 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !load(skb, p, &s->syn.h))
		return 0;
	int has = options(&s->syn.h, &s->found);
	if (has & ANNOUNCES && !(has & (PROBES | UNFIT)) && holds(&p->t, f))
		return 1;
	if (has & PROBES) {
		silence(f, &p->t, COPIED, COPIED_FOR);
		count(f, COPIED);
		if (passes(&p->t, f, PROBED))
			return 0; /* the flow is forgotten with the way */
	} else {
		count(f, NO_OPTION);
	}
	forget(&p->t, f);
	return 0;
}

/*
 * came_end sees the end of a handshake with a server, perhaps with PROPOSAL. It returns what is done with it. If it cannot be held it is
 * lost, and comes again: the program must not see it.
 */
static __always_inline int came_end(struct __sk_buff *skb, const struct packet *p, struct flow *f)
{
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !load(skb, p, &s->syn.h))
		return TC_ACT_SHOT;
	if (!(options(&s->syn.h, &s->found) & PROBES))
		return holds(&p->t, f) ? bpf_redirect(hold, 0) : TC_ACT_SHOT;
	/* Options are copied on the way: the client has taken the connection for TCP. */
	count(f, COPIED);
	forget(&p->t, f);
	return TC_ACT_UNSPEC;
}

/* arriving sees what comes to the host by a device, and what the stack sends to its programs. */
SEC("tc")
int arriving(struct __sk_buff *skb)
{
	struct packet p;
	if (skb->mark == mark) {
		skb->mark = 0;
		bpf_skb_change_type(skb, PACKET_HOST);
		return TC_ACT_UNSPEC;
	}
	if (!parse(skb, 0, &p))
		return TC_ACT_UNSPEC;
	struct way *w = bpf_map_lookup_elem(&ways, &p.t);
	if (w && w->state == PROBED)
		return TC_ACT_UNSPEC;
	if (p.h.syn && !p.h.ack) {
		if ((!w || (!is_split(w) && dead())) && came_syn(skb, &p, w))
			return TC_ACT_UNSPEC;
		return w ? asks(&w->asked[1]) : TC_ACT_UNSPEC; /* whether it is of a new connection, the stack has to find out */
	}
	if (w && w->state == FROZEN && !p.h.syn && has_data(&p) && !empty(skb, &p))
		return TC_ACT_SHOT;
	if (w)
		return bpf_redirect(w->state == HELD ? hold : veth, 0);
	if (late(skb, &p))
		return TC_ACT_SHOT;
	struct shift *by = shift_of(&p.t);
	if (by)
		return shifted(skb, &p, by, 0);
	struct flow *f = bpf_map_lookup_elem(&flows, &p.t);
	if (!f)
		return TC_ACT_UNSPEC;
	if (p.h.rst) {
		/* The end of an earlier stack's connection with the same ports is not that of this one, nor is a forged one. */
		if (f->server ? bpf_ntohl(p.h.seq) != f->peer_isn + 1 : bpf_ntohl(p.h.ack_seq) != f->isn + 1)
			return TC_ACT_UNSPEC;
		count(f, REFUSED);
		forget(&p.t, f);
		return TC_ACT_UNSPEC;
	}
	if (p.h.syn)
		return came_synack(skb, &p, f) ? bpf_redirect(hold, 0) : TC_ACT_UNSPEC;
	/* Data that was sent behind it may have come before: the kernel would take no other acknowledgement number. */
	if (f->server && bpf_ntohl(p.h.ack_seq) == f->isn + 1)
		return came_end(skb, &p, f);
	return TC_ACT_UNSPEC;
}

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

/* renew announces the connection of a SYN that has waited for the end of another one with the same addresses and ports. */
static __always_inline void renew(struct __sk_buff *skb)
{
	struct packet p;
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s || !parse(skb, 1, &p) || !p.h.syn || p.h.ack)
		return;
	struct flow *f = bpf_map_lookup_elem(&renewed, &p.t);
	if (!f || f->isn != bpf_ntohl(p.h.seq))
		return;
	s->flow = *f;
	if (bpf_map_delete_elem(&renewed, &p.t) || !takes() || bpf_map_lookup_elem(&ways, &p.t))
		return;
	enters(skb, &p, &s->flow, 0);
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
		renew(skb);
		return bpf_redirect_neigh(bpf_ntohl(to.dev), 0, 0, 0);
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
