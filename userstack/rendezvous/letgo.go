// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"time"
)

// Over TCP, the accept() of a server never returns before the connect() of its client has, or
// would: the server has to have the ACK of a client that is connected. Programs rely on that. So
// where programs are held (Config.Held), that of the server waits for something of the client, and
// that of the client is let go before its host sends it:
//
//	the client's program is let go    | the server's waits for
//	----------------------------------+-----------------------------------------------------
//	when ACCEPT has come              | CONFIRM, also in a first contact; or DECLINE
//	when DECLINE has come             | the acknowledgement of DECLINE, which the client's
//	                                  | host delays
//	before it sends DECLINE in place  | DECLINE
//	of PROPOSAL                       |
//	not before that: a server that    | data, or the end of the stream: a client that takes
//	does not speak CLC gets another   | the connection for TCP has sent them
//	connection, over TCP              |
//
// What the program sends meanwhile waits for the outcome, which still may be any.

// ErrNotLetGo means that the program of a client did not get its connection. Its TCP has heard
// nothing from the server then, and sends SYN again.
var ErrNotLetGo = errors.New("the program did not get its connection")

// letGo has the program let go, if there is one, before something else follows.
func (m *client) letGo(now time.Time, then func()) {
	if !m.conf.Held {
		then()
		return
	}
	m.then = then
	m.await(LettingGo, now.Add(LetGoWait))
	m.do(LetGo{})
}

func (m *client) wasLetGo(time.Time, Event) { m.then() }

// notLetGo is the end of the wait for the program.
func (m *client) notLetGo(time.Time, Event) { m.fail(ErrNotLetGo) }
