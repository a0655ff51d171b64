// SPDX-License-Identifier: Apache-2.0

package service

import (
	"time"

	"smcr/quota"
)

const (
	// maxMemories limits the connections that are remembered as TCP, and maxMemoriesUser those
	// of one user. Further ones are not remembered.
	maxMemories     = 8192
	maxMemoriesUser = 1024
	// memoryTick is the time between two checks whether these connections still exist, and
	// memorySoon the shortest time, when there is no room.
	memoryTick = 2 * time.Minute
	memorySoon = time.Second
)

// localMemories are connections between programs of this host that became TCP, and which the
// server has not accepted: its launcher must not take them for those of another host.
// localTable.mu guards them.
type localMemories struct {
	users map[tuple]uint32
	count map[uint32]int // by user
	timer *time.Timer    // nil: there are none
	swept time.Time
}

func (m *localMemories) empty() bool { return len(m.users) == 0 }

// forget reports whether the connection was there.
func (m *localMemories) forget(name tuple) bool {
	uid, ok := m.users[name]
	if !ok {
		return false
	}
	delete(m.users, name)
	if m.count[uid]--; m.count[uid] == 0 {
		delete(m.count, uid)
	}
	return true
}

// add reports whether there was room.
func (m *localMemories) add(name tuple, uid uint32) bool {
	if _, ok := m.users[name]; ok {
		return true
	}
	uid = quota.Account(uid)
	if !quota.Fair(m.count[uid], 1, maxMemoriesUser, len(m.users), maxMemories) {
		return false
	}
	if m.users == nil {
		m.users, m.count = map[tuple]uint32{}, map[uint32]int{}
	}
	m.users[name] = uid
	m.count[uid]++
	return true
}

// remember keeps the name of a localConn that became TCP until its server accepts it, or the
// connection has ended. The caller holds mu.
func (t *localTable) remember(f *localConn) {
	t.forget(f)
	f.result = outcomeTCP
	if f.name != (tuple{}) {
		t.rememberName(f.name, f.uid)
	}
}

// rememberName keeps a name for a user. The caller holds mu.
func (t *localTable) rememberName(name tuple, uid uint32) {
	m := &t.memories
	wait := memoryTick
	if !m.add(name, uid) {
		if time.Since(m.swept) < memorySoon {
			return
		}
		wait = 0
	}
	if m.timer == nil {
		m.timer = time.AfterFunc(wait, t.guarded(t.sweepMemories))
	} else if wait == 0 {
		m.timer.Reset(0)
	}
}

// sweepMemories forgets the connections that do not exist any more.
func (t *localTable) sweepMemories() {
	t.mu.Lock()
	t.memories.swept = time.Now()
	names := make([]tuple, 0, len(t.memories.users))
	for name := range t.memories.users {
		names = append(names, name)
	}
	t.mu.Unlock()
	var ended []tuple
	for _, name := range names {
		if t.exists == nil || !t.exists(name) {
			ended = append(ended, name)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range ended {
		t.memories.forget(name)
	}
	if t.memories.empty() {
		t.memories.timer = nil
		return
	}
	t.memories.timer.Reset(memoryTick)
}
