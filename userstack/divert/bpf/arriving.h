/* SPDX-License-Identifier: Apache-2.0 */

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
