/* SPDX-License-Identifier: Apache-2.0 */

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
 * late reports whether a packet is a reset that reject has made on the host of the peer, for a connection that this stack has given up
 * already. The program may have another one meanwhile, with the same number: SYN and SYN-ACK are both sent again a second after the first ones.
 */
static __always_inline int late(struct __sk_buff *skb, const struct packet *p)
{
	__u32 zero = 0;
	if (!p->h.rst || p->h.ack || p->h.syn)
		return 0;
	__u32 *seq = bpf_map_lookup_elem(&given_up, &p->t);
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	return seq && *seq == bpf_ntohl(p->h.seq) && s && load(skb, p, &s->syn.h) && options(&s->syn.h, &s->found) & ANNOUNCES;
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
	if (!w && !p.h.ack) {
		int is = renew(skb, &p, s);
		if (is >= 0)
			return is == TC_ACT_OK ? TC_ACT_UNSPEC : is;
	}
	begin(skb, &p, s, p.h.ack, w != 0);
	return w ? asks(&w->asked[0]) : TC_ACT_UNSPEC;
}
