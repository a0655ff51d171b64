// SPDX-License-Identifier: Apache-2.0

package sockopt

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

// Options that x/sys/unix has no names for.
const (
	tcpULP      = 31
	ipTables    = 64 // IPT_BASE_CTL, and IP6T_BASE_CTL
	ip6TableEnd = 65 // IP6T_SO_SET_MAX; IPv6 has options of its own beyond
)

// plainOptions are often used and take no capability, whatever the value.
var plainOptions = map[int][]int{
	unix.SOL_SOCKET: {
		unix.SO_KEEPALIVE, unix.SO_LINGER, unix.SO_OOBINLINE, unix.SO_RCVBUF, unix.SO_SNDBUF, unix.SO_ERROR, unix.SO_TYPE,
		unix.SO_REUSEADDR, unix.SO_REUSEPORT, unix.SO_RCVLOWAT, unix.SO_RCVTIMEO, unix.SO_SNDTIMEO,
	},
	unix.IPPROTO_TCP: {
		unix.TCP_NODELAY, unix.TCP_CORK, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT,
		unix.TCP_QUICKACK, unix.TCP_NOTSENT_LOWAT, unix.TCP_MAXSEG, unix.TCP_INFO, unix.TCP_SYNCNT, unix.TCP_DEFER_ACCEPT,
		unix.TCP_LINGER2, unix.TCP_WINDOW_CLAMP,
	},
	unix.IPPROTO_IP: {unix.IP_TOS, unix.IP_TTL, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_BIND_ADDRESS_NO_PORT},
	unix.IPPROTO_IPV6: {
		unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR, unix.IPV6_V6ONLY,
	},
}

// socketOptions are those of level SOL_SOCKET, other than the plain ones, that a
// launcher asks for. Others have effects beyond the socket: their value points
// into the memory of the caller or names a descriptor of it (SO_ATTACH_FILTER,
// SO_ATTACH_BPF), or what they return can be longer than the buffer
// (SO_GET_FILTER counts in instructions). SO_PEERPIDFD gives a descriptor.
// SO_BINDTODEVICE would change the way of the connection below. SO_TIMESTAMPING would put messages into
// the error queue of the socket, which its other holders watch.
var socketOptions = []int{
	unix.SO_DEBUG, unix.SO_DONTROUTE, unix.SO_BROADCAST, unix.SO_NO_CHECK, unix.SO_PRIORITY, unix.SO_BSDCOMPAT, unix.SO_SNDBUFFORCE,
	unix.SO_PASSCRED, unix.SO_PASSSEC, unix.SO_PASSPIDFD, unix.SO_PASSRIGHTS, unix.SO_PEERNAME, unix.SO_PEERSEC, unix.SO_PEERGROUPS,
	unix.SO_MARK, unix.SO_RCVMARK, unix.SO_RCVPRIORITY, unix.SO_RXQ_OVFL, unix.SO_WIFI_STATUS, unix.SO_NOFCS,
	unix.SO_SELECT_ERR_QUEUE, unix.SO_BUSY_POLL, unix.SO_PREFER_BUSY_POLL, unix.SO_BUSY_POLL_BUDGET, unix.SO_MAX_PACING_RATE,
	unix.SO_BPF_EXTENSIONS, unix.SO_INCOMING_CPU, unix.SO_INCOMING_NAPI_ID, unix.SO_CNX_ADVICE, unix.SO_COOKIE, unix.SO_NETNS_COOKIE,
	unix.SO_RESERVE_MEM, unix.SO_TXREHASH, unix.SO_DEVMEM_DONTNEED, unix.SO_INQ,
}

// Allowed reports whether WithRights sets and reads an option at all.
func Allowed(level, name int) bool {
	return level != unix.SOL_SOCKET || NeedsNoRights(level, name) || slices.Contains(socketOptions, name)
}

// NeedsNoRights reports whether an option is one of the often used ones that need no
// capability. It returns false for other options, even if they need none.
func NeedsNoRights(level, name int) bool { return slices.Contains(plainOptions[level], name) }

// WithRights sets or reads option name of level, which is what f does, with no
// more rights than r.
func WithRights(r rights.Rights, set bool, level, name int, f func() error) error {
	if NeedsNoRights(level, name) {
		return f()
	}
	switch level {
	case unix.SOL_SOCKET:
		if !Allowed(level, name) {
			return syscall.EPERM
		}
	case unix.IPPROTO_TCP:
		if set && (name == tcpULP || name == unix.TCP_REPAIR) {
			return syscall.EPERM // the connection belongs to the stack
		}
	case unix.IPPROTO_IP, unix.IPPROTO_IPV6:
		if set && name >= ipTables && (level == unix.IPPROTO_IP || name <= ip6TableEnd) {
			// The tables of packet filters, with pointers into the caller's memory.
			// Without rights the kernel does not look at them.
			r = 0
		}
	default:
		return syscall.ENOPROTOOPT
	}
	if rights.OwnsNetwork() {
		return syscall.EPERM
	}
	return r.Do(f)
}
