/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connections of servers that are announced and not decided: half open, held, or in CLC. Whoever connects keeps the stack waiting for
 * as long as that takes, so there is a bound for all of them, for a user, and for an origin: the hosts that may be one machine, as
 * quota.Origin has it. The rules are those of rendezvous.Limit. What is beyond is not announced, and TCP. Each also keeps a place in the
 * queue of its listening socket, which has room for much less: see has_room.
 *
 * The counts are in slots of one array, which the programs and user space change by adding to them. A slot is chosen by a keyed hash, so
 * nothing fills up, nobody's count is forgotten for that of another one, and nobody can choose whose slot to share.
 */

/* The first two slots; those of users and origins follow. */
enum { EVERYBODY, STRANGERS, SLOTS_BEGIN };
#define SLOTS 32768
#define SLOT_MASK (SLOTS - 1)

/* A part of what all have together, and of what a user has, is for hosts that are known. */
#define KNOWN_SHARE 4

/* What is counted: an origin, a user, an origin or strangers with a user, and an origin at a listening socket. All are counted for EVERYBODY. */
enum { OF_ORIGIN, OF_ORIGIN_AT_USER, OF_USER, OF_STRANGERS_AT_USER, OF_ORIGIN_AT_LISTENER };
struct counted {
	__u32 what;
	__u32 account;	/* or the number of a listening socket */
	struct origin from;
};

/* A peer with which there was a connection over SMC-R, and its Ethernet address, or 0 behind a router. */
struct met {
	__u8 mac[8];
};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SLOTS); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, __u64); } undecided SEC(".maps"); /* both sides add to it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1024); __uint(map_flags, BPF_F_NO_PREALLOC); __uint(key_size, 16); __type(value, struct met); } hosts SEC(".maps"); /* that are known; user space writes it */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1024); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct origin); __type(value, __u64); } mutes SEC(".maps"); /* origins that said nothing too often, and until when nothing is announced to them; user space writes it */

struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, __u32); } numbers SEC(".maps"); /* of listening sockets: any number. It is memory of the socket, and ends with it */

/*
 * What the kernel has of a listening socket: where these fields are is found when the programs are loaded (CO-RE). A kernel without BTF
 * does not say that.
 */
#define OF_KERNEL __attribute__((preserve_access_index))
struct netns_ipv4 {
	int sysctl_max_syn_backlog;
	__u8 sysctl_tcp_syncookies;
} OF_KERNEL;
struct net {
	struct netns_ipv4 ipv4;
} OF_KERNEL;
struct sock_common {
	struct { struct net *net; } skc_net;
} OF_KERNEL;
struct sock {
	struct sock_common __sk_common;
	__u32 sk_max_ack_backlog;
} OF_KERNEL;
struct inet_sock {
	struct sock sk;
} OF_KERNEL;
struct request_sock_queue {
	struct { int counter; } qlen;
} OF_KERNEL;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
} OF_KERNEL;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
} OF_KERNEL;

/* slot returns where something is counted. */
static __always_inline __u32 slot(const struct counted *c)
{
	const __u32 *w = (const __u32 *)c;
	__u64 h = seed;
	for (__u32 i = 0; i < sizeof(*c) / sizeof(*w); i++) {
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 32;
	}
	__u32 at = (__u32)h & SLOT_MASK;
	return at < SLOTS_BEGIN ? at + SLOTS_BEGIN : at;
}

/* tally returns what a slot has. One may have been taken off twice, when the stack stood still. */
static __always_inline __u32 tally(__u32 at)
{
	__u64 *n = bpf_map_lookup_elem(&undecided, &at);
	return n && (__s64)*n > 0 ? *n : 0;
}

/* weigh_at adds to what a slot has. */
static __always_inline void weigh_at(__u32 at, __s64 n)
{
	__u64 *is = at == NO_SLOT ? 0 : bpf_map_lookup_elem(&undecided, &at);
	if (is)
		__sync_fetch_and_add(is, n);
}

/* weigh adds to what the slots of a flow have, and to what all have. */
static __always_inline void weigh(const __u32 *slots, __s64 n)
{
	weigh_at(EVERYBODY, n);
	for (__u32 i = 0; i < FLOW_SLOTS; i++)
		weigh_at(slots[i], n);
}

/* known reports whether there was a connection over SMC-R with a peer of the same Ethernet address, or behind a router. */
static __always_inline int known(const __u8 *host, const struct hop *via, int near)
{
	struct met *m = bpf_map_lookup_elem(&hosts, host);
	if (!m)
		return 0;
	const __u32 *is = (const __u32 *)m->mac, *by = (const __u32 *)via->mac;
	return near ? is[0] == by[0] && is[1] == by[1] : !is[0] && !is[1];
}

/*
 * originate finds out from where a peer comes. A neighbour is as many addresses as it wants, and one Ethernet address. Behind a router, a
 * network is an origin; a host of it that is known has one of its own, as others can send SYNs with addresses of its network.
 */
static __always_inline int originate(struct origin *o, const struct tuple *t, const struct hop *via, int v6, int near)
{
	__builtin_memset(o, 0, sizeof(*o));
	__builtin_memcpy(o->net, t->remote, sizeof(o->net));
	if (!near && v6)
		__builtin_memset(o->net + 8, 0, 8);
	int met = known(o->net, via, near);
	if (near) {
		__builtin_memset(o->net, 0, sizeof(o->net));
		__builtin_memcpy(o->mac, via->mac, sizeof(o->mac));
	} else if (!met) {
		if (v6)
			o->net[6] = o->net[7] = 0;
		else
			o->net[15] = 0;
	}
	return met;
}

/* fits reports whether one who has own may have one more of most, where used are taken, and taken by strangers: see quota.Fair. */
static __always_inline int fits(__u32 own, __u32 used, __u32 strangers, __u32 most, int met)
{
	__u32 theirs = most - most / KNOWN_SHARE;
	if (used >= most || (!met && strangers >= theirs))
		return 0;
	if (!own)
		return 1;
	if (own + 1 > (most + 1) / 2 || own + 1 + used + 1 > most)
		return 0;
	return met || own + 1 + strangers + 1 <= theirs;
}

/* mute reports whether nothing is announced to an origin for now. */
static __always_inline int mute(const struct origin *o)
{
	__u64 *until = bpf_map_lookup_elem(&mutes, o);
	return until && bpf_ktime_get_ns() < *until;
}

/* admit finds the slots of a flow, and reports whether it can be counted there. */
static __always_inline int admit(struct flow *f, struct counted *c, int met)
{
	__u32 of_user = ((f->account ? per_user : of_root) + 1) / 2;
	if (of_user > undecided_most)
		of_user = undecided_most;
	__builtin_memset(c, 0, sizeof(*c));
	c->from = f->from;
	c->what = OF_ORIGIN;
	f->slots[0] = slot(c);
	c->what = OF_ORIGIN_AT_USER;
	c->account = f->account;
	f->slots[1] = slot(c);
	__builtin_memset(&c->from, 0, sizeof(c->from));
	c->what = OF_USER;
	f->slots[2] = slot(c);
	f->slots[3] = NO_SLOT; /* has_room has it */
	c->what = OF_STRANGERS_AT_USER;
	__u32 strangers = slot(c);
	f->slots[4] = met ? NO_SLOT : strangers;
	f->slots[5] = met ? NO_SLOT : STRANGERS;
	return fits(tally(f->slots[0]), tally(EVERYBODY), tally(STRANGERS), undecided_most, met) &&
	       fits(tally(f->slots[1]), tally(f->slots[2]), tally(strangers), of_user, met);
}

/* part returns a part of what a listening socket has room for, which is never nothing: one connection after the other always fits. */
static __always_inline __u32 part(__u32 most, __u32 eighths)
{
	__u32 n = (__u64)most * eighths / 8;
	return n ? n : 1;
}

/* room returns for how many handshakes a listening socket has room before those of others get SYN cookies, or nothing. */
static __always_inline __u32 room(const struct sock *sk)
{
	__u32 most = sk->sk_max_ack_backlog;
	struct net *net = sk->__sk_common.skc_net.net;
	if (net->ipv4.sysctl_tcp_syncookies)
		return most;
	__u32 all = net->ipv4.sysctl_max_syn_backlog; /* without cookies, the kernel keeps the last quarter of it for hosts that it knows */
	return part(all, 6) < most ? part(all, 6) : most;
}

/* number_of returns the number of a listening socket, or 0 for all that have no room for one. */
static __always_inline __u32 number_of(struct bpf_sock *sk)
{
	__u32 any = bpf_get_prandom_u32();
	__u32 *n = bpf_sk_storage_get(&numbers, sk, &any, BPF_SK_STORAGE_GET_F_CREATE);
	if (!n)
		n = bpf_sk_storage_get(&numbers, sk, 0, 0); /* another processor was first */
	return n ? *n : 0;
}

/*
 * has_room reports whether the listening socket of a SYN-ACK has room for one more connection that is undecided, and finds the slot of its
 * origin there: it keeps a place in the queue of handshakes for as long as it is held, where one of TCP keeps it for a round trip. The queue is
 * what the kernel has, whoever fills it. If more than half is taken, the kernel also ends old handshakes early.
 *
 *	            an origin   all
 *	strangers   2/8         3/8
 *	known       3/8         4/8
 */
static __always_inline int has_room(struct __sk_buff *skb, struct flow *f, struct counted *c, int met)
{
	struct bpf_sock *sk = skb->sk;
	if (!bpf_core_field_exists(struct sock, sk_max_ack_backlog) || !sk)
		return 1;
	sk = bpf_get_listener_sock(sk);
	if (!sk)
		return 1; /* it was just closed */
	__u32 number = number_of(sk);
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 1;
	__u32 most = room(&tp->inet_conn.icsk_inet.sk), queue = tp->inet_conn.icsk_accept_queue.qlen.counter; /* with this one */
	__builtin_memset(c, 0, sizeof(*c));
	c->what = OF_ORIGIN_AT_LISTENER;
	c->account = number;
	c->from = f->from;
	f->slots[3] = slot(c);
	return queue <= part(most, met ? 4 : 3) && tally(f->slots[3]) < part(most, met ? 3 : 2);
}
