// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
)

// sourceKeys are the attributes that say who has caused a record: a user, a host by its address, or
// both. A user counts as [Account] says, and a host as [Host] does, whatever its ports. Names are no sources: a host may
// change its own.
var sourceKeys = map[string]bool{
	"uid": true, "user": true,
	"remote": true, "peer": true, "connection": true, "neighbour": true,
}

// A remote is an attribute that has an address.
type remote interface{ LogSource() netip.Addr }

// addSource adds the source that an attribute names, if it does, to those before it.
func addSource(before string, a slog.Attr) string {
	s := sourceOf(a)
	if before == "" || s == "" {
		return before + s
	}
	return before + " " + s
}

// sourceOf returns the source that an attribute names, or "".
func sourceOf(a slog.Attr) string {
	if !sourceKeys[a.Key] {
		return ""
	}
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindInt64:
		return sourceUser(uint64(v.Int64()))
	case slog.KindUint64:
		return sourceUser(v.Uint64())
	case slog.KindString:
		return sourceText(v.String())
	case slog.KindAny:
		switch x := v.Any().(type) {
		case netip.AddrPort:
			return sourceAddr(x.Addr())
		case netip.Addr:
			return sourceAddr(x)
		case remote:
			return sourceAddr(x.LogSource())
		case fmt.Stringer:
			return sourceText(x.String())
		}
	}
	return ""
}

// sourceText returns the source of the text of an address.
func sourceText(s string) string {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return sourceAddr(ap.Addr())
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return sourceAddr(a)
	}
	return ""
}

func sourceAddr(a netip.Addr) string { return Host(a).String() }

func sourceUser(uid uint64) string {
	return strconv.FormatUint(uint64(Account(uint32(uid))), 10)
}
