/* SPDX-License-Identifier: Apache-2.0 */

/* The option of SMC, and the probe: what has it is appended to SYN and SYN-ACK. */

/*
 * append adds options to a packet without payload. The helpers do what the packet needs: with
 * CHECKSUM_PARTIAL only the length of the pseudo header changes.
 */
static __always_inline int append(struct __sk_buff *skb, const struct packet *p, const __u8 *o, __u32 n)
{
	__u32 end = p->tcp + p->h.doff * 4, len = p->len + n;
	if (p->h.doff * 4 + n > 60 || p->len != p->h.doff * 4 || skb->len != end)
		return 0;
	if (bpf_skb_change_tail(skb, skb->len + n, 0))
		return 0;
	if (bpf_skb_store_bytes(skb, end, o, n, 0))
		return 0;
	__be16 was, now;
	if (bpf_skb_load_bytes(skb, p->tcp + 12, &was, 2))
		return 0;
	now = bpf_htons(bpf_ntohs(was) + (n / 4 << 12));
	bpf_skb_store_bytes(skb, p->tcp + 12, &now, 2, 0);
	bpf_l4_csum_replace(skb, p->tcp + offsetof(struct tcphdr, check), was, now, 2);
	sum(skb, p, bpf_csum_diff(0, 0, (__be32 *)o, n, 0));
	resize(skb, p, len);
	return 1;
}

static const __u8 of_syn[12] = { 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 254, 6, 0x53, 0x4d, 0x43, 0x72 };
static const __u8 of_synack[8] = { 254, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1 };

static const __u8 of_probe[8] = { 254, 6, 0x53, 0x4d, 0x43, 0x72, 1, 1 };

static __always_inline int announce(struct __sk_buff *skb, const struct packet *p, int server)
{
	return server ? append(skb, p, of_synack, sizeof(of_synack)) : append(skb, p, of_syn, sizeof(of_syn));
}
