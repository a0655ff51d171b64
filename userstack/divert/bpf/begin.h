/* SPDX-License-Identifier: Apache-2.0 */

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
 * connecting socket is erased, unless another host has sent it. That of one that is was announced by another stack at this device, or by the
 * kernel. With waits, a connection
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
	if (has & ANNOUNCES && mine && !real && !others(skb, p))
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

/*
 * renew announces the connection of a SYN that has waited for the end of another one with the same addresses and ports, and of one that is
 * sent again behind it: the peer must not get one with the option, and one without. It returns what is done with the packet, or -1 if it is no such SYN.
 */
static __always_inline int renew(struct __sk_buff *skb, const struct packet *p, struct scratch *s)
{
	struct flow *f = bpf_map_lookup_elem(&renewed, &p->t);
	if (!f || f->isn != bpf_ntohl(p->h.seq))
		return -1;
	s->flow = *f;
	if (bpf_map_delete_elem(&renewed, &p->t))
		return TC_ACT_STOLEN; /* the other one was first, on another processor */
	if (takes())
		enters(skb, p, &s->flow, 0);
	return TC_ACT_OK;
}
