// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// Listens returns the addresses of the Internet at which a socket unit listens for connections. The error matches
// ErrNoSystemd, or ErrNotFound.
func Listens(ctx context.Context, unit string) ([]netip.AddrPort, error) {
	out, err := newSystemd().ask(ctx, "show", "--property=Listen,LoadState", "--", unit)
	if err != nil {
		return nil, err
	}
	if parseShow(out)["LoadState"] == "not-found" {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, unit)
	}
	return parseListen(out), nil
}

// parseListen returns the addresses in the output of systemctl show, which has a line for each: an address and what it
// is for.
func parseListen(text string) (at []netip.AddrPort) {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), "Listen=")
		if value, ok2 := strings.CutSuffix(value, " (Stream)"); ok && ok2 {
			if a, err := netip.ParseAddrPort(value); err == nil { // others are sockets in the file system
				at = append(at, a)
			}
		}
	}
	return at
}
