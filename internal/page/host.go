// SPDX-License-Identifier: Apache-2.0

package page

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// mayAsk reports whether a request names a host that is meant. A page of another site could
// otherwise give its own name the address of this host after it was loaded (DNS rebinding),
// and read the answers. Such a request has the name of that site. The port does not matter:
// ssh -L may have changed it.
func (h *handler) mayAsk(r *http.Request) bool {
	name := hostName(r.Host)
	if strings.EqualFold(name, "localhost") {
		return true
	}
	if own := hostName(h.cfg.Address); own != "" && strings.EqualFold(name, own) {
		return true
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	if addr.Unmap().IsLoopback() {
		return true
	}
	// With an address such as 0.0.0.0, this is the address that the viewer has used.
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap().WithZone("") == addr.Unmap().WithZone("")
}

// hostName returns HOST of HOST, HOST:PORT, [HOST] or [HOST]:PORT.
func hostName(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return strings.TrimSuffix(s, ".")
}
