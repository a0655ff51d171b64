/* SPDX-License-Identifier: Apache-2.0 */

/* How many connections each user may have. */

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
