// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"
	"syscall"
)

// option makes the handler set or read an option, after the earlier ones of the connection.
func (ss *session) option(m Message) {
	ss.mu.Lock()
	c := ss.conns[m.Conn]
	ss.mu.Unlock()
	if c == nil {
		ss.answer(m, nil, syscall.ENOTCONN) // the connection ended before the message came
		return
	}
	ss.requests <- struct{}{}
	if c.options.add(m) {
		ss.wg.Go(func() {
			for m, ok := c.options.next(); ok; m, ok = c.options.next() {
				ss.carryOut(c, m)
				<-ss.requests
			}
		})
	}
}

// carryOut sets or reads an option, and answers.
func (ss *session) carryOut(c *Conn, m Message) {
	var v []byte
	var err error
	r := m.Rights & ss.l.rights
	if ss.s.guarded("a request of a launcher", func() {
		if m.Type == TypeSetOption {
			err = ss.s.Handler.SetOption(c.ctx, c, r, int(m.Level), int(m.Name), m.Value)
		} else {
			v, err = ss.s.Handler.GetOption(c.ctx, c, r, int(m.Level), int(m.Name), int(m.Size))
		}
	}) != nil {
		v, err = nil, syscall.EIO
	}
	ss.answer(m, v, err)
}

// answer answers a request, unless its Seq is 0.
func (ss *session) answer(m Message, v []byte, err error) {
	if m.Seq != 0 {
		ss.result(m.Seq, v, err)
	}
}

// queue holds the requests of a connection, which are carried out one after the other.
type queue struct {
	mu   sync.Mutex
	m    []Message
	busy bool // a goroutine calls next until the queue is empty
}

// add adds a request. It reports whether the caller must call next until the queue is
// empty.
func (q *queue) add(m Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.m = append(q.m, m)
	was := q.busy
	q.busy = true
	return !was
}

// next removes and returns the oldest request. ok is false if there is none.
func (q *queue) next() (m Message, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.m) == 0 {
		q.m, q.busy = nil, false
		return m, false
	}
	m, q.m = q.m[0], q.m[1:]
	return m, true
}
