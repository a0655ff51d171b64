// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/inside"
	"smcr/userstack/wire"
)

// partTime is how long the rest of a CLC header may be on its way.
const partTime = 100 * time.Millisecond

// looksLikeCLC reports whether the first bytes on an accepted connection are
// a CLC message. It leaves them unread: where the TCP option cannot tell
// whether the peer speaks SMC, its data must not be taken for CLC.
func looksLikeCLC(tcp *net.TCPConn) bool {
	clc, _ := lookForCLC(context.Background(), tcp)
	return clc
}

// lookForCLC is looksLikeCLC that also tells of a peer which sent nothing in the
// time of a CLC message, or until ctx ended.
func lookForCLC(ctx context.Context, tcp inside.TCPConn) (clc, silent bool) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return false, false
	}
	_ = tcp.SetReadDeadline(time.Now().Add(clcTimeout))
	defer tcp.SetReadDeadline(time.Time{}) //nolint:errcheck // a closed socket shows at the next use
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [wire.HeaderLen]byte
	err = rc.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == unix.EAGAIN || err == unix.EINTR {
			return false
		}
		// Part of a header: the rest is on its way. Data already there raises
		// no further event, so look again shortly.
		for begin := time.Now(); err == nil && n > 0 && n < len(b) && time.Since(begin) < partTime; {
			time.Sleep(time.Millisecond)
			n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
		if err == nil && n == len(b) {
			_, perr := wire.ParseHeader(b[:])
			clc = perr == nil
		}
		return true
	})
	return clc, errors.Is(err, os.ErrDeadlineExceeded)
}

// probeSocket is Probe of a kernel's TCP connection. A socket that does not say
// has ended, which the next use of it will tell.
func probeSocket(tcp syscall.Conn) (unacked bool, first []byte) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return false, nil
	}
	var b [wire.HeaderLen]byte
	_ = rc.Control(func(fd uintptr) {
		// The other way round a message might come in between.
		left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		unacked = err == nil && left > 0
		if n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err == nil && n > 0 {
			first = b[:n]
		}
	})
	return unacked, first
}
