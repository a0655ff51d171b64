/* SPDX-License-Identifier: Apache-2.0 */

/* Packets: what they are, and how they are changed. */

/* A TCP packet. */
struct packet {
	struct tuple t;
	struct tcphdr h;
	__u32 ip, tcp;	/* offsets of the headers */
	__u32 len;	/* of the TCP segment by the IP header; 0 if it does not say */
	__u8 v6;
};

/* parse returns 0 for what is no TCP packet or a part of one, and for tagged packets: the VLAN device sees those again. */
static __always_inline int parse(struct __sk_buff *skb, int local_is_source, struct packet *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	if (skb->vlan_present)
		return 0;
	p->ip = ETH_HLEN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(0x3fff) || ip.ihl < 5)
			return 0;
		p->tcp = ETH_HLEN + ip.ihl * 4;
		if (bpf_ntohs(ip.tot_len) > ip.ihl * 4)
			p->len = bpf_ntohs(ip.tot_len) - ip.ihl * 4;
		p->t.local[10] = p->t.local[11] = p->t.remote[10] = p->t.remote[11] = 0xff;
		__builtin_memcpy(&p->t.local[12], local_is_source ? &ip.saddr : &ip.daddr, 4);
		__builtin_memcpy(&p->t.remote[12], local_is_source ? &ip.daddr : &ip.saddr, 4);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return 0;
		p->v6 = 1;
		p->tcp = ETH_HLEN + sizeof(ip);
		p->len = bpf_ntohs(ip.payload_len);
		__builtin_memcpy(p->t.local, local_is_source ? &ip.saddr : &ip.daddr, 16);
		__builtin_memcpy(p->t.remote, local_is_source ? &ip.daddr : &ip.saddr, 16);
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, p->tcp, &p->h, sizeof(p->h)) || p->h.doff < 5)
		return 0;
	p->t.lport = local_is_source ? p->h.source : p->h.dest;
	p->t.rport = local_is_source ? p->h.dest : p->h.source;
	return 1;
}

/* load copies the TCP header with its options. */
static __always_inline int load(struct __sk_buff *skb, const struct packet *p, struct header *h)
{
	__u32 n = p->h.doff * 4;
	if (n < 20)
		return 0;
	asm volatile("" : "+r"(n)); /* or the compiler makes one comparison of both, with another register: then Linux 6.1 does not know the least n */
	if (n > 60)
		return 0;
	__builtin_memset(h, 0, sizeof(*h));
	if (bpf_skb_load_bytes(skb, p->tcp, h->b, n))
		return 0;
	h->len = n;
	return 1;
}

/* What options a header has. */
#define ANNOUNCES 1	/* that of SMC */
#define PROBES 2	/* the probe, which only a device that copies options sends back */
#define UNFIT 4		/* one that covers the header, or makes the stream more than TCP: MD5, AO, MPTCP, fast open */

/* byte returns one byte of h. The compiler is kept from what the verifier could not follow. */
static __always_inline __u32 byte(const struct header *h, __u32 i)
{
	asm volatile("%0 &= 63" : "+r"(i));
	return h->b[i];
}

/* option takes one option. It returns 0 at the end of the list. */
static __always_inline int option(const struct header *h, volatile struct found *f)
{
	__u32 i = f->at;
	if (i >= h->len)
		return 0;
	__u32 kind = byte(h, i), len = byte(h, i + 1);
	if (kind == 0)
		return 0;
	if (kind == 1) {
		f->at = i + 1;
		return 1;
	}
	if (len < 2 || i + len > h->len)
		return 0;
	if (kind == 19 || kind == 29 || kind == 30 || kind == 34)
		f->has |= UNFIT;
	if (kind == 254 && len == 6) {
		__u32 ex = byte(h, i + 2) << 24 | byte(h, i + 3) << 16 | byte(h, i + 4) << 8 | byte(h, i + 5);
		if (ex == 0xe2d4c3d9) {
			f->where = i;
			f->has |= ANNOUNCES;
		}
		if (ex == 0x534d4372)
			f->has |= PROBES;
	}
	if (kind == 8 && len == 10)
		f->stamps = i;
	if (kind == 5)
		f->sack = i;
	f->at = i + len;
	return 1;
}

/* options returns what h has. */
static __always_inline int options(const struct header *h, volatile struct found *f)
{
	f->at = 20;
	f->has = f->where = f->stamps = f->sack = 0;
	for (int turn = 0; turn < 40; turn++)
		if (!option(h, f))
			break;
	return f->has;
}

/* sum updates the checksum of TCP after a change whose difference is d. */
static __always_inline void sum(struct __sk_buff *skb, const struct packet *p, __s64 d)
{
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), 0, d, 0);
}

/* erase overwrites the option of SMC at an offset of the TCP header: what this host has not announced must not leave it. */
static __always_inline void erase(struct __sk_buff *skb, const struct packet *p, __u32 where)
{
	__u32 odd = where & 3, off = p->tcp + where - odd;
	if (where > 54)
		return;
	/* The sum needs whole words: up to three have bytes of the option. */
	for (__u32 word = 0; word < 3 && word * 4 < odd + 6; word++, off += 4) {
		__u8 was[4], now[4];
		if (bpf_skb_load_bytes(skb, off, was, 4))
			return;
		for (__u32 i = 0; i < 4; i++)
			now[i] = word * 4 + i >= odd && word * 4 + i < odd + 6 ? 1 : was[i];
		if (bpf_skb_store_bytes(skb, off, now, 4, 0))
			return;
		sum(skb, p, bpf_csum_diff((__be32 *)was, 4, (__be32 *)now, 4, 0));
	}
}

/* has_data reports whether a packet has data, the end of a stream, or more than the IP header says. */
static __always_inline int has_data(const struct packet *p)
{
	return !p->len || p->len > p->h.doff * 4 || p->h.fin;
}

/* resize has the headers say that the TCP segment has another length. */
static __always_inline void resize(struct __sk_buff *skb, const struct packet *p, __u32 len)
{
	__be16 was, now = bpf_htons(len);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), bpf_htons(p->len), now, BPF_F_PSEUDO_HDR | 2);
	if (p->v6) {
		bpf_skb_store_bytes(skb, p->ip + offsetof(struct ipv6hdr, payload_len), &now, 2, 0);
		return;
	}
	was = bpf_htons(p->len + (p->tcp - p->ip));
	now = bpf_htons(len + (p->tcp - p->ip));
	bpf_l3_csum_replace(skb, p->ip + offsetof(struct iphdr, check), was, now, 2);
	bpf_skb_store_bytes(skb, p->ip + offsetof(struct iphdr, tot_len), &now, 2, 0);
}

/*
 * empty makes a packet the acknowledgement that it is beside its data. All words of a segment with those of its pseudo header
 * are 0xffff: that says the sum of the data, which is no longer there. It reports whether the packet can go on.
 */
static __always_inline int empty(struct __sk_buff *skb, const struct packet *p)
{
	__u32 zero = 0, n = p->h.doff * 4, off = p->tcp + 16;
	__be32 rest, was, now;
	__be16 flags;
	struct scratch *x = bpf_map_lookup_elem(&scratches, &zero);
	if (!x || !p->len || !p->h.ack || p->h.rst)
		return 0;
	struct image *m = &x->image;
	__builtin_memset(m, 0, sizeof(*m));
	if (n < 20)
		return 0;
	asm volatile("" : "+r"(n)); /* as in load */
	if (n > 60 || bpf_skb_load_bytes(skb, p->tcp, m->was, n))
		return 0;
	rest = bpf_htonl(IPPROTO_TCP + p->len);
	__s64 sums = bpf_csum_diff(0, 0, (__be32 *)m->was, sizeof(m->was), 0);
	sums = bpf_csum_diff(0, 0, (__be32 *)&p->t, 32, sums); /* what makes IPv4 addresses IPv4-mapped is 0xffff, which is 0 */
	sums = bpf_csum_diff(0, 0, &rest, 4, sums);
	if (p->len > p->h.doff * 4 && bpf_skb_change_tail(skb, p->tcp + p->h.doff * 4, 0))
		return 0;
	if (bpf_skb_load_bytes(skb, off, &was, 4))
		return 0;
	if (p->len > p->h.doff * 4)
		sum(skb, p, sums);
	if (bpf_skb_load_bytes(skb, off, &now, 4))
		return 0;
	bpf_csum_update(skb, bpf_csum_diff(&was, 4, &now, 4, 0));
	if (bpf_skb_load_bytes(skb, p->tcp + 12, &flags, 2))
		return 0;
	__be16 ack = flags & bpf_htons(0xfff6); /* neither FIN nor PSH */
	bpf_skb_store_bytes(skb, p->tcp + 12, &ack, 2, 0);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), flags, ack, 2);
	resize(skb, p, p->h.doff * 4);
	return 1;
}
