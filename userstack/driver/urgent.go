// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// mark finds out whether the next byte is urgent. An urgent byte outside the stream is taken.
// An inline byte is the first that can be read, if there is data. The group's lock is held.
func (r *Reader) mark(readable bool) (u byte, apart, inline bool) {
	c := r.c
	defer c.g.caught()
	if c.g.end.broken || !c.core.AtMark() {
		return 0, false, false
	}
	if readable && c.core.UrgentInline() {
		return 0, false, true
	}
	u, err := c.core.Urgent(false)
	return u, err == nil, false
}

// urgentApart reports whether an urgent byte waits outside the stream: a byte that came
// before SetUrgentInline. The group's lock is held.
func (r *Reader) urgentApart() bool {
	_, err := r.c.core.Urgent(true)
	return err == nil
}

// receivedUrgent counts the receive of an urgent byte that is not in the stream.
func (r *Reader) receivedUrgent() {
	st := r.c.g.s.Stats
	st.Call(stats.Urgent)
	st.RX(1)
}

// Urgent reads the urgent byte. The error is conn.ErrUrgentPending if the byte was announced
// but has not arrived. It is conn.ErrNoUrgent if there is none, if it was read before, or if
// it is in the stream.
func (r *Reader) Urgent() (u byte, err error) {
	c := r.c
	err = conn.ErrReset
	c.g.do(func(time.Time) {
		switch {
		case c.g.end.broken:
		case r.shut.Load():
			err = conn.ErrNoUrgent
		default:
			u, err = c.core.Urgent(false)
		}
	})
	if err == nil {
		r.receivedUrgent()
	}
	return u, err
}

// AtMark reports whether the next byte to be read is the urgent one.
func (r *Reader) AtMark() (at bool) {
	c := r.c
	c.g.do(func(time.Time) { at = !c.g.end.broken && c.core.AtMark() })
	return at
}

// SetUrgentInline sets whether urgent bytes that arrive from now on stay in the stream.
func (r *Reader) SetUrgentInline(on bool) {
	c := r.c
	c.g.do(func(time.Time) {
		if !c.g.end.broken {
			c.core.SetUrgentInline(on)
		}
	})
}
