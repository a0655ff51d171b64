// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"syscall"
	"time"
)

// rights prints the results of setting options that need a capability, and of some that
// do not, on a connection over which it exchanges a message.
func rights(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := exchange(c, 'r'); err != nil {
		return err
	}
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	if err := rc.Control(func(fd uintptr) {
		for _, o := range []struct {
			text               string
			level, name, value int
		}{
			{"TCP_NODELAY", syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
			{"IP_TOS", syscall.IPPROTO_IP, syscall.IP_TOS, 16},
			{"IP_FREEBIND", syscall.IPPROTO_IP, syscall.IP_FREEBIND, 1},
			{"SO_PRIORITY 6", syscall.SOL_SOCKET, syscall.SO_PRIORITY, 6},
			{"SO_PRIORITY 7", syscall.SOL_SOCKET, syscall.SO_PRIORITY, 7},
			{"SO_MARK", syscall.SOL_SOCKET, syscall.SO_MARK, 7},
			{"SO_SNDBUFFORCE", syscall.SOL_SOCKET, syscall.SO_SNDBUFFORCE, 100000},
			{"SO_RCVBUFFORCE", syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 100000},
			{"IP_TRANSPARENT", syscall.IPPROTO_IP, syscall.IP_TRANSPARENT, 1},
			{"IP_XFRM_POLICY", syscall.IPPROTO_IP, syscall.IP_XFRM_POLICY, 1},
			{"IP_IPSEC_POLICY", syscall.IPPROTO_IP, syscall.IP_IPSEC_POLICY, 1},
		} {
			err := syscall.SetsockoptInt(int(fd), o.level, o.name, o.value)
			fmt.Printf("%s: %v\n", o.text, err)
		}
	}); err != nil {
		return err
	}
	return exchange(c, 's')
}
