// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"slices"

	"smcr/quota"
)

// line has connections that were accepted early, in the order in which they get on: calls of
// accept() take them from one, and another one has those about which the service is not asked
// yet. Hosts take turns, and the connections of one host are in the order in which they came.
// So a host that connects faster than that delays the others by one connection each time.
type line struct {
	list  []inLine // by turn
	hosts map[netip.Addr]hostTurns
	turn  uint64 // of the connection that was taken last
}

// inLine is a connection in a line.
type inLine struct {
	a    *accepted
	turn uint64
}

// hostTurns is what a line knows of a host that has connections in it.
type hostTurns struct {
	n    int    // of them
	last uint64 // the turn of the last one
}

func (q *line) len() int { return len(q.list) }

// add lets a wait.
func (q *line) add(a *accepted) {
	host := quota.Host(a.remote.Addr())
	h := q.hosts[host]
	turn := max(q.turn, h.last) + 1
	q.count(host, hostTurns{h.n + 1, turn})
	i, _ := slices.BinarySearchFunc(q.list, turn+1, func(e inLine, turn uint64) int {
		if e.turn < turn {
			return -1
		}
		return 1
	})
	q.list = slices.Insert(q.list, i, inLine{a, turn})
}

// addFirst lets a wait before all others.
func (q *line) addFirst(a *accepted) {
	host := quota.Host(a.remote.Addr())
	h := q.hosts[host]
	turn := q.turn
	if len(q.list) > 0 {
		turn = min(turn, q.list[0].turn)
	}
	q.count(host, hostTurns{h.n + 1, max(h.last, turn)})
	q.list = slices.Insert(q.list, 0, inLine{a, turn})
}

// take removes and returns the first one, of which there is one.
func (q *line) take() *accepted {
	e := q.list[0]
	q.list[0] = inLine{}
	q.list = q.list[1:]
	q.turn = max(q.turn, e.turn)
	q.left(e.a)
	return e.a
}

// remove removes a and reports whether it was there.
func (q *line) remove(a *accepted) bool {
	i := slices.IndexFunc(q.list, func(e inLine) bool { return e.a == a })
	if i < 0 {
		return false
	}
	q.list = slices.Delete(q.list, i, i+1)
	q.left(a)
	return true
}

// left counts that a is gone.
func (q *line) left(a *accepted) {
	host := quota.Host(a.remote.Addr())
	h := q.hosts[host]
	h.n--
	q.count(host, h)
}

// count sets what is known of a host. Nothing is known of one that has no connections here, so
// hosts do not add up.
func (q *line) count(host netip.Addr, h hostTurns) {
	if h.n == 0 {
		delete(q.hosts, host)
		return
	}
	if q.hosts == nil {
		q.hosts = map[netip.Addr]hostTurns{}
	}
	q.hosts[host] = h
}
