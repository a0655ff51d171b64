// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// forgeOwn is forge for an address of this host from which packets go to another one. It says that
// it listens, on a socket that has no port yet, and wants a pair with itself. When it has an end, it
// writes forged messages to the TCP socket.
func forgeOwn(addr netip.AddrPort, n int) error {
	ctx := context.Background()
	cl, err := broker.DialStack(ctx, "forge", broker.FlagLocal)
	if err != nil {
		return err
	}
	defer cl.Close()
	l, err := freshSocket()
	if err != nil {
		return err
	}
	defer unix.Close(l)
	if err := cl.Listen(ctx, l); err != nil {
		return err
	}
	all := messages()
	joined, left := 0, 0
	for i := range n {
		got, err := own(cl, port(addr, i), all[i%len(all)], ways[i/len(all)%len(ways)])
		if err != nil {
			return fmt.Errorf("attempt %d: %w", i, err)
		}
		if got {
			joined++
		} else {
			left++
		}
	}
	fmt.Printf("attempts: %d, with an end: %d, left to TCP: %d\n", n, joined, left)
	return nil
}

// own is one attempt. It reports whether it got an end of a pair.
func own(cl *broker.Client, addr netip.AddrPort, msg []byte, way func(int, []byte) error) (joined bool, err error) {
	fd, err := freshSocket()
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	defer unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) //nolint:errcheck // the test sees
	c, err := cl.Connect(fd, broker.ConnectRequest{Remote: addr})
	if err != nil {
		return false, err
	}
	timer := time.NewTimer(attemptTime)
	defer timer.Stop()
	for {
		select {
		case ev, ok := <-c.Events():
			switch {
			case !ok:
				return joined, cl.Err()
			case ev.Kind == broker.EventLocal:
				joined = true
				if ev.End != nil {
					defer ev.End.Close()
				}
				if err := c.Proceed(); err != nil {
					return joined, err
				}
				for range 3 {
					_ = way(fd, msg)
					time.Sleep(5 * time.Millisecond)
				}
				return joined, c.Cancel()
			case ev.Kind == broker.EventClosed:
				return joined, nil
			}
		case <-timer.C:
			return joined, fmt.Errorf("no end of the attempt: %w", unix.ETIMEDOUT)
		}
	}
}
