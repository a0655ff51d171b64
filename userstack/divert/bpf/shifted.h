/* SPDX-License-Identifier: Apache-2.0 */

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
