/* SPDX-License-Identifier: Apache-2.0 */

/* Whose a packet is that leaves: its socket, cgroup and user. */

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

/*
 * others reports whether a packet is forwarded, and the route to its source leads back to where it has come from, as to a container with an
 * address of its own: who has that speaks for itself. What was translated has an address of this host, or one that others answer for.
 */
static __always_inline int others(struct __sk_buff *skb, const struct packet *p)
{
	if (!skb->ingress_ifindex)
		return 0;
	struct bpf_fib_lookup to = { .ifindex = skb->ingress_ifindex };
	if (p->v6) {
		to.family = 10; /* AF_INET6 */
		__builtin_memcpy(to.ipv6_dst, p->t.local, 16);
	} else {
		to.family = 2; /* AF_INET */
		__builtin_memcpy(&to.ipv4_dst, p->t.local + 12, 4);
	}
	long is = bpf_fib_lookup(skb, &to, sizeof(to), 0);
	return (is == BPF_FIB_LKUP_RET_SUCCESS || is == BPF_FIB_LKUP_RET_NO_NEIGH) && to.ifindex == skb->ingress_ifindex;
}
