/* SPDX-License-Identifier: Apache-2.0 */

/* What is known of peers and places. */

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
