/* SPDX-License-Identifier: Apache-2.0 */

/* Whether there is a stack, and why connections are TCP. */

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
