// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// The load balancer of the kernel (IPVS) leads connections of programs of this host, too, to another
// host, whatever address they name. It sends their segments without their socket, so the eBPF
// program of a gate does not see them. Such connections are not announced.

const (
	// balancerFile has the services of the network namespace, if the kernel has IPVS.
	balancerFile = "/proc/thread-self/net/ip_vs"
	// balancerFresh is for how long what was read counts, and balancerAbsent for how long
	// there being no such file.
	balancerFresh  = 100 * time.Millisecond
	balancerAbsent = time.Second
)

// balancer knows the addresses of which IPVS takes connections.
type balancer struct {
	mu    sync.Mutex
	until time.Time
	all   bool // each address
	addrs map[netip.Addr]bool
}

// leads reports whether IPVS may lead connections to an address elsewhere.
func (b *balancer) leads(now time.Time, remote netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !now.Before(b.until) {
		text, err := os.ReadFile(balancerFile)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			b.all, b.addrs, b.until = false, nil, now.Add(balancerAbsent)
		case err != nil: // nobody knows
			b.all, b.addrs, b.until = true, nil, now.Add(balancerFresh)
		default:
			b.all, b.addrs = parseServices(text)
			b.until = now.Add(balancerFresh)
		}
	}
	return b.all || b.addrs[remote]
}

// parseServices returns the addresses of the services for TCP in text. all is true if there may be
// others, because the mark of packets decides, or a line is not understood.
func parseServices(text []byte) (all bool, addrs map[netip.Addr]bool) {
	addrs = map[netip.Addr]bool{}
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "FWM":
			all = true
		case "TCP":
			a, ok := serviceAddr(f[1])
			if !ok {
				all = true
			}
			addrs[a] = true
		}
	}
	return all, addrs
}

// serviceAddr parses C6336401:0FA1 or [2001:0db8:...]:0fa1.
func serviceAddr(s string) (netip.Addr, bool) {
	host := s[:max(0, strings.LastIndexByte(s, ':'))]
	if six, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(six, "]"))
		return a, err == nil
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b) != 4 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(b)), true
}
