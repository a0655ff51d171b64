// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"net/netip"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/network"
)

// kernel is the name of the kernel's stack.
const kernel = "kernel"

// row is a socket in the listing of a stack.
type row struct {
	stack string
	nl.Connection
}

// item is a socket: what the kernel's TCP and what a stack say about it.
type item struct {
	tcp *network.TCPInfo // nil: TCP lists none
	row *row             // nil: no stack lists it
}

// pair identifies a connection by its addresses, or a listener by one.
type pair struct{ local, remote netip.AddrPort }

func pairOf(c *nl.Connection) pair {
	if c.State == smc.StateListen {
		return pair{local: cmdutil.Plain(c.Local)}
	}
	return pair{cmdutil.Plain(c.Local), cmdutil.Plain(c.Remote)}
}

// conn returns the socket.
func (i *item) conn() *nl.Connection {
	if i.row != nil {
		return &i.row.Connection
	}
	return &i.tcp.Connection
}

// own returns the socket as its program has it: with addresses that the host may translate before the stack sees them.
func (i *item) own() *nl.Connection {
	if i.tcp != nil {
		return &i.tcp.Connection
	}
	return i.conn()
}

// carried reports whether something else than the TCP socket carries the data.
func (i *item) carried() bool {
	return i.row != nil && i.row.State != smc.StateListen && i.row.State != smc.StateInit && i.row.Mode != nl.ModeTCP
}

// key identifies a socket in two snapshots.
func (i *item) key() any {
	if i.row != nil && (i.row.Cookie == 0 || i.tcp == nil) {
		return [...]any{i.row.stack, i.row.Inode, pairOf(&i.row.Connection)}
	}
	return i.tcp.Cookie
}

// join puts together what is about the same socket. A stack in user space knows the TCP sockets of programs by
// their cookies: a host may translate addresses between such a socket and the stack. The connection over SMC-R of a program that has a
// stack of its own has none, and neither has the kernel's SMC socket: they have a TCP
// socket below them with the same addresses, which shows nothing of what they carry.
func join(tcp []network.TCPInfo, rows []row) (items []item) {
	byCookie, byPair := map[uint64]*row{}, map[pair][]*row{}
	for i := range rows {
		r := &rows[i]
		if r.Cookie != 0 && r.stack != kernel {
			byCookie[r.Cookie] = r
		} else if r.Local.IsValid() && r.State != smc.StateClosed {
			p := pairOf(&r.Connection)
			byPair[p] = append(byPair[p], r)
		}
	}
	used := map[*row]bool{}
	for i := range tcp {
		it := item{tcp: &tcp[i]}
		if it.row = byCookie[tcp[i].Cookie]; it.row == nil {
			// Several listeners may share an address.
			if p := pairOf(&tcp[i].Connection); len(byPair[p]) > 0 {
				it.row, byPair[p] = byPair[p][0], byPair[p][1:]
			}
		}
		if it.row != nil {
			used[it.row] = true
		}
		items = append(items, it)
	}
	for i := range rows {
		r := &rows[i]
		if !used[r] && r.Local.IsValid() && (r.Remote.IsValid() || r.State == smc.StateListen) && r.State != smc.StateClosed {
			items = append(items, item{row: r})
		}
	}
	return items
}

// ends has the sockets that may be the other end of a connection within this network namespace.
type ends struct {
	pairs map[pair]bool
	// from and to are the local and the remote addresses of connections with an address of this machine that no socket has the other way
	// around: a rule translates one of them.
	from, to map[netip.AddrPort]bool
}

func endsOf(items []item, own map[netip.Addr]bool) ends {
	e := ends{map[pair]bool{}, map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}}
	for i := range items {
		if p := pairOf(items[i].own()); p.remote.IsValid() {
			e.pairs[p] = true
		}
	}
	for p := range e.pairs {
		if remote := p.remote.Addr(); !e.pairs[pair{p.remote, p.local}] && (remote.IsLoopback() || own[remote]) {
			e.from[p.local], e.to[p.remote] = true, true
		}
	}
	return e
}

// here reports whether the other end of a connection is a socket of this network namespace: one with the same addresses the other way
// around, or one that has one of them, if a rule translates the other (as REDIRECT does).
func (e ends) here(c *nl.Connection) bool {
	p := pairOf(c)
	return e.pairs[pair{p.remote, p.local}] || e.to[p.local] || e.from[p.remote]
}

// owners says to which processes sockets belong.
type owners struct {
	byInode map[uint64][]int // of sockets in files of processes
	stacks  map[int]bool     // processes that are stacks
}

// of returns the processes that have a socket, the first of which is shown.
func (o *owners) of(i *item) []int {
	var pids []int
	switch {
	case i.row != nil && i.row.stack == kernel:
		pids = o.byInode[i.row.Inode]
	case i.tcp != nil: // if it is carried, that of a program that keeps its socket, or the stack's own below it
		pids = slices.DeleteFunc(slices.Clone(o.byInode[i.tcp.Inode]), func(pid int) bool { return o.stacks[pid] })
		if len(pids) == 0 && !i.carried() {
			pids = o.byInode[i.tcp.Inode]
		}
	}
	if len(pids) > 1 && pids[0] == 1 { // systemd, which made the socket for the others
		pids = append(slices.Clone(pids[1:]), 1)
	}
	if len(pids) == 0 && i.row != nil && i.row.PID != 0 {
		pids = []int{int(i.row.PID)} // a program that embeds a stack
	}
	return pids
}

// selectsItem is selects for the addresses that the program has, and for those that the stack sees.
func (t target) selectsItem(it *item, own map[netip.Addr]bool) bool {
	return t.selects(it.conn(), own) || t.selects(it.own(), own)
}

// selects reports whether a target that is no process selects a socket. own are the addresses of
// this network namespace.
func (t target) selects(c *nl.Connection, own map[netip.Addr]bool) bool {
	local, remote := cmdutil.Plain(c.Local), cmdutil.Plain(c.Remote)
	listens := c.State == smc.StateListen
	anywhere := listens && local.Addr().IsUnspecified()
	switch {
	case t.port != 0:
		return local.Port() == t.port || !listens && remote.Port() == t.port
	case t.addr.IsValid():
		return local.Addr() == t.addr || !listens && remote.Addr() == t.addr
	case t.pair.IsValid():
		return local == t.pair || !listens && remote == t.pair ||
			anywhere && local.Port() == t.pair.Port() && (own[t.pair.Addr()] || t.pair.Addr().IsLoopback())
	}
	return false
}

// listening has the listeners of all sockets, for what is accepted.
type listening map[netip.AddrPort]bool

func listeners(items []item) listening {
	l := listening{}
	for i := range items {
		if c := items[i].conn(); c.State == smc.StateListen {
			l[cmdutil.Plain(c.Local)] = true
		}
	}
	return l
}

// of returns the address of the listener that accepted a connection, or false.
func (l listening) of(c *nl.Connection) (netip.AddrPort, bool) {
	local := cmdutil.Plain(c.Local)
	for _, a := range []netip.Addr{local.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if p := netip.AddrPortFrom(a, local.Port()); l[p] {
			return p, true
		}
	}
	return netip.AddrPort{}, false
}

// clients counts the connections of each listener.
func clients(items []item, l listening) map[netip.AddrPort]Clients {
	n := map[netip.AddrPort]Clients{}
	for i := range items {
		it := &items[i]
		c := it.conn()
		if c.State == smc.StateListen || c.State == smc.StateInit {
			continue
		}
		at, ok := l.of(it.own())
		if !ok {
			continue
		}
		sum := n[at]
		if it.carried() {
			sum.SMC++
		} else {
			sum.TCP++
		}
		n[at] = sum
	}
	return n
}

// sortFacts brings sockets into the order in which they are shown: listeners, then TCP, which is
// what users ask about, then the others.
func sortFacts(all []*Facts) {
	rank := func(f *Facts) int {
		switch {
		case f.listens():
			return 0
		case f.Stack == "" || f.Conn.Mode == nl.ModeTCP:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b *Facts) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Conn.Local.Compare(b.Conn.Local), a.Conn.Remote.Compare(b.Conn.Remote))
	})
}
