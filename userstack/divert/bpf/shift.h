/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A connection of which SMC was declined, and that the stack has carried until nothing was on the way: its packets go between
 * the program and the peer again, as those of any connection. Only the numbers of both streams differ, by what was said
 * before. shift.go makes it.
 *
 * The maps are those of all stacks of a network namespace, one after the other, so the connection outlives each of them. One
 * of them changes the packets.
 */

/*
 * The timestamps of one side go on where those of the stack's socket were: the first packet has begin. Two packets at once may
 * both be the first; what is added differs by less than a tick then.
 */
struct clock {
	__u32 begin;
	__u32 add;	/* to timestamps, once there was a packet */
	__u32 runs;
};

struct shift {
	__u32 out;	/* what is added to the sequence numbers of the program */
	__u32 in;	/* to those of the peer */
	__u32 isn;	/* of the SYN, or SYN-ACK, of this host */
	__u32 uid;	/* of the socket */
	__u32 dev;	/* by which the program has sent */
	__u32 sent, received;	/* the next sequence numbers of this side and of the peer, as the peer knows them, when it was let go */
	__u32 most;	/* sent, with what the program has sent since */
	struct clock out_clock, in_clock;
};

/* The mark of the stack that changes the packets; and 0 if there is no such connection. */
enum { OWNER, ANY, SHIFTER };

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct tuple); __type(value, struct shift); } shifts SEC(".maps"); /* user space writes it, but for the timestamps, and most */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SHIFTER); __type(key, __u32); __type(value, __u32); } shifter SEC(".maps"); /* user space writes it */

/* shift_of returns how this stack changes the packets of a connection, or 0. */
static __always_inline struct shift *shift_of(const struct tuple *t)
{
	__u32 key = ANY;
	__u32 *any = bpf_map_lookup_elem(&shifter, &key);
	if (!any || !*any)
		return 0;
	key = OWNER;
	__u32 *owner = bpf_map_lookup_elem(&shifter, &key);
	if (!owner || *owner != mark)
		return 0;
	return bpf_map_lookup_elem(&shifts, t);
}

/* A TCP header with its options, and zeros behind them, before a change and after it. */
struct image {
	__u8 was[64];
	__u8 now[68];	/* a word can begin at each of the first 64 */
};

/* word returns four bytes of a header. */
static __always_inline __u32 word(const struct image *m, __u32 i)
{
	asm volatile("%0 &= 63" : "+r"(i));
	const __u8 *b = m->now + i;
	return (__u32)b[0] << 24 | (__u32)b[1] << 16 | (__u32)b[2] << 8 | b[3];
}

/* add adds to four bytes of a header. */
static __always_inline void add(struct image *m, __u32 i, __u32 d)
{
	asm volatile("%0 &= 63" : "+r"(i));
	__u8 *b = m->now + i;
	__u32 v = ((__u32)b[0] << 24 | (__u32)b[1] << 16 | (__u32)b[2] << 8 | b[3]) + d;
	b[0] = v >> 24;
	b[1] = v >> 16;
	b[2] = v >> 8;
	b[3] = v;
}

/*
 * starts reports whether a packet of the peer may be the one by which its timestamps go on: everybody can send one with these addresses
 * and ports, and all later ones would be wrong. The peer has acknowledged all that was sent by then. What it sends is near what it had sent,
 * or, if its acknowledgement was lost, behind that.
 */
#define NEAR (1u << 24)
static __always_inline int starts(const struct shift *s, const struct tcphdr *h)
{
	__u32 acked = bpf_ntohl(h->ack_seq) - s->sent, at = bpf_ntohl(h->seq) - s->received;
	return s->in_clock.runs || (h->ack && acked <= s->most - s->sent && at + NEAR <= 2 * NEAR);
}

/* stamp changes the two timestamps at an offset. One that answers what the program has not sent itself says nothing to it. */
static __always_inline void stamp(struct image *m, struct shift *s, __u32 at, int leaves)
{
	struct clock *own = leaves ? &s->out_clock : &s->in_clock, *other = leaves ? &s->in_clock : &s->out_clock;
	if (!own->runs) {
		own->add = own->begin - word(m, at);
		own->runs = 1;
	}
	add(m, at, own->add);
	__u32 echo = word(m, at + 4);
	if (echo)
		add(m, at + 4, -(other->runs ? other->add : echo));
}
