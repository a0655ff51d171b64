// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"slices"

	"smcr/quota"
)

// line has the connections that were accepted early, in the order in which calls of accept()
// get them. Hosts take turns, and the connections of one host are in the order in which they
// came. So a host that connects faster than the program accepts delays the others by one
// connection each time.
type line struct {
	list  []*accepted // by turn
	hosts map[netip.Addr]hostTurns
	turn  uint64 // of the connection that was taken last
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
	a.turn = max(q.turn, h.last) + 1
	q.count(host, hostTurns{h.n + 1, a.turn})
	i, _ := slices.BinarySearchFunc(q.list, a.turn+1, func(a *accepted, turn uint64) int {
		if a.turn < turn {
			return -1
		}
		return 1
	})
	q.list = slices.Insert(q.list, i, a)
}

// addFirst lets a wait before all others.
func (q *line) addFirst(a *accepted) {
	host := quota.Host(a.remote.Addr())
	h := q.hosts[host]
	if a.turn = q.turn; len(q.list) > 0 {
		a.turn = min(a.turn, q.list[0].turn)
	}
	q.count(host, hostTurns{h.n + 1, max(h.last, a.turn)})
	q.list = slices.Insert(q.list, 0, a)
}

// take removes and returns the first one, of which there is one.
func (q *line) take() *accepted {
	a := q.list[0]
	q.list[0] = nil
	q.list = q.list[1:]
	q.turn = max(q.turn, a.turn)
	q.left(a)
	return a
}

// remove removes a and reports whether it was there.
func (q *line) remove(a *accepted) bool {
	i := slices.Index(q.list, a)
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
