// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerOf returns the credentials of the process at the other end (unix(7),
// SO_PEERCRED).
func peerOf(conn *net.UnixConn) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var soErr error
	if err := raw.Control(func(fd uintptr) {
		cred, soErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if soErr != nil {
		return Peer{}, soErr
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}
