// SPDX-License-Identifier: Apache-2.0

package broker

// orphan ends the handlers of connections whose launcher has ended, unless they have the
// service's end of the pair: what the program has written into it, perhaps before it ended,
// belongs to the service. Both ends of a local connection are with programs.
func (ss *session) orphan() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, c := range ss.conns {
		if !c.pairCame.Load() || c.local.Load() {
			c.cancel(ErrLauncherGone)
		}
	}
}

// sendOrDrop sends m. If the launcher cannot receive it, the session ends.
func (ss *session) sendOrDrop(m *Message) { _ = ss.send(m) }

// send sends m. If the launcher cannot receive it, the session ends. If that is because the
// launcher has ended, its last messages are still handled.
func (ss *session) send(m *Message) error {
	err := ss.t.send(m, -1)
	if err != nil && !closedFirst(err) {
		ss.t.shutdown()
	}
	return err
}
