// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nl

import "net"

func peerOf(*net.UnixConn) (Peer, error) { return Peer{}, ErrNotSupported }
