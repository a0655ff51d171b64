// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ipsec looks connections up in the security policies of a network namespace.
// The zero value finds none.
type ipsec struct {
	sock  *nl.SocketHandle // nil: the kernel has no IPsec
	watch watch
	known *knownPolicies
}

// knownPolicies are the policies until a change.
type knownPolicies struct {
	mu   sync.Mutex
	read bool
	list []policy
}

// openIPsec returns the policies of the calling thread's namespace.
func openIPsec() (ipsec, error) {
	s, err := nl.Subscribe(unix.NETLINK_XFRM)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return ipsec{}, nil
	}
	if err != nil {
		return ipsec{}, fmt.Errorf("network: open the list of IPsec policies: %w", err)
	}
	w, err := openWatch(unix.NETLINK_XFRM, nl.XFRMNLGRP_POLICY)
	if err != nil {
		w = noWatch // without CAP_NET_ADMIN, nobody may know
	}
	return ipsec{&nl.SocketHandle{Socket: s}, w, &knownPolicies{}}, nil
}

func (x ipsec) close() {
	if x.sock != nil {
		x.sock.Close()
		x.watch.close()
	}
}

// secured reports whether a policy has the packets of a TCP connection encrypted,
// signed or dropped. Without CAP_NET_ADMIN the policies cannot be read; then it
// reports false.
func (x ipsec) secured(local, remote netip.AddrPort) (bool, error) {
	if x.sock == nil {
		return false, nil
	}
	policies, err := x.policies()
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("network: list IPsec policies: %w", err)
	}
	local, remote = unmapPort(local), unmapPort(remote)
	return protected(policies, uint8(netlink.XFRM_DIR_OUT), local, remote) ||
		protected(policies, uint8(netlink.XFRM_DIR_IN), remote, local), nil
}

// policies returns the policies that there are. Nobody changes the slice.
func (x ipsec) policies() ([]policy, error) {
	k := x.known
	k.mu.Lock()
	defer k.mu.Unlock()
	x.watch.reports(func(uint16) { k.read = false })
	if k.read {
		return k.list, nil
	}
	req := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_XFRM: x.sock}
	msgs, err := req.Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
	if err != nil {
		return nil, err
	}
	var list []policy
	for _, m := range msgs {
		p, err := parsePolicy(m)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	k.read, k.list = true, list
	return list, nil
}

// policy is the part of a struct xfrm_userpolicy_info and its attributes that
// matters here (linux/xfrm.h).
type policy struct {
	src, dst selector
	proto    uint8 // 0: any
	dir      uint8 // as netlink.Dir
	priority uint32
	protects bool // does something else than letting packets pass
	partial  bool // applies to one netdev, mark or interface id only
}

// selector is one end of the packets that a policy is for.
type selector struct {
	prefix     netip.Prefix
	port, mask uint16
}

func (s selector) contains(a netip.AddrPort) bool {
	return s.prefix.Contains(a.Addr()) && a.Port()&s.mask == s.port&s.mask
}

func parsePolicy(b []byte) (policy, error) {
	if len(b) < nl.SizeofXfrmUserpolicyInfo {
		return policy{}, fmt.Errorf("network: IPsec policy of %d bytes", len(b))
	}
	msg := nl.DeserializeXfrmUserpolicyInfo(b)
	attrs, err := nl.ParseRouteAttr(b[nl.SizeofXfrmUserpolicyInfo:])
	if err != nil {
		return policy{}, fmt.Errorf("network: IPsec policy: %w", err)
	}
	sel := &msg.Sel
	end := func(a nl.XfrmAddress, length uint8, port, mask uint16) selector {
		ip := netip.AddrFrom16(a)
		if sel.Family == unix.AF_INET {
			ip = netip.AddrFrom4([4]byte(a[:4]))
		}
		return selector{netip.PrefixFrom(ip, int(length)), fromBig(port), fromBig(mask)}
	}
	p := policy{
		src: end(sel.Saddr, sel.PrefixlenS, sel.Sport, sel.SportMask), dst: end(sel.Daddr, sel.PrefixlenD, sel.Dport, sel.DportMask),
		proto: sel.Proto, dir: msg.Dir, priority: msg.Priority, protects: msg.Action != uint8(netlink.XFRM_POLICY_ALLOW), partial: sel.Ifindex != 0,
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.XFRMA_TMPL:
			p.protects = p.protects || len(a.Value) > 0
		case nl.XFRMA_MARK, nl.XFRMA_IF_ID:
			p.partial = true
		}
	}
	return p, nil
}

// fromBig converts a number in network byte order that was loaded from memory in
// host byte order.
func fromBig(v uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v))
}

// protected finds the policy of the highest priority, which is the lowest
// number, for packets from src to dst.
func protected(policies []policy, dir uint8, src, dst netip.AddrPort) bool {
	var found bool
	var best policy
	for _, p := range policies {
		if p.dir != dir || p.proto != 0 && p.proto != unix.IPPROTO_TCP || !p.src.contains(src) || !p.dst.contains(dst) {
			continue
		}
		// Whether a partial policy applies to this connection is unknown. So it
		// may protect the connection, but does not exempt it from another policy.
		if p.partial && !p.protects {
			continue
		}
		if !found || p.priority < best.priority {
			found, best = true, p
		}
	}
	return found && best.protects
}

func unmapPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
