// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/sockopt"
)

// MaxMinKeepAlive is the largest MinKeepAlive of a [Config]: the largest value of
// TCP_KEEPIDLE and TCP_KEEPINTVL in Linux.
const MaxMinKeepAlive = 32767 * time.Second

// keepAliveTimes are the options of level IPPROTO_TCP that say how often keepalives are
// sent, in seconds.
var keepAliveTimes = [...]int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL}

// keepAlive limits how often keepalives are sent on the TCP connection below an SMC-R
// connection (RFC 7609, section 4.5.3). The TCP socket may then have a longer time than its
// program has set. The program reads what it has set, and the link is tested as often as
// that says.
type keepAlive struct {
	least uint32                      // seconds
	set   [len(keepAliveTimes)]uint32 // by the program, if the socket has more; else 0
}

// index returns the index of an option in keepAliveTimes, or -1.
func (*keepAlive) index(level, name int) int {
	if level != unix.IPPROTO_TCP {
		return -1
	}
	return slices.Index(keepAliveTimes[:], name)
}

// limit raises an option of the TCP socket to the limit. The program has just set it, or the
// connection has just become one over SMC-R.
func (k *keepAlive) limit(sock sockopt.Socket, level, name int) {
	i := k.index(level, name)
	if i < 0 {
		return
	}
	k.set[i] = 0
	v := number(sock, level, name)
	if v == 0 || v >= k.least {
		return
	}
	if sockopt.Set(sock, level, name, binary.NativeEndian.AppendUint32(nil, k.least)) == nil {
		k.set[i] = v
	}
}

// shown puts what the program has set in the place of v, which the TCP socket has.
func (k *keepAlive) shown(level, name int, v []byte) {
	if i := k.index(level, name); i >= 0 && k.set[i] != 0 {
		copy(v, binary.NativeEndian.AppendUint32(nil, k.set[i]))
	}
}

// idle returns TCP_KEEPIDLE as the program has set it, in seconds.
func (k *keepAlive) idle(sock sockopt.Socket) uint32 {
	if v := k.set[0]; v != 0 {
		return v
	}
	return number(sock, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
}

// seconds rounds up.
func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }
