// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/userstack/internal/connector"
)

// supervisor answers the trapped system calls of one filter tree.
type supervisor struct {
	ctx        context.Context
	cutOrphans <-chan struct{} // closed when Run does not wait for the program any more
	l          *notify
	log        *slog.Logger
	stats      *counters
	poll       *poller

	connector connector.Connector
	looks     *looks
	epolls    epollIndex
	ends      endIndex
	decide    time.Duration // decideTime, except in tests
	stop      int           // eventfd that ends serve
	tasks     tasks

	sessions *sessions
	quiet    quiet
	receiver *receiver
	worth    *worth // nil: every connection tries SMC
	notes    notes

	landlock atomic.Bool // see limitsNetwork

	sockets   *sockets
	copies    copies
	endCopies budget

	early     bool   // accept waiting connections early
	earlyHeld budget // connections that are accepted and wait for the program
	places    places
}

// begin calls f, which answers n, in a goroutine. The goroutine runs first, so that
// it does not have to wait until another thread wakes up.
func (s *supervisor) begin(n *notif, f func()) {
	s.answerLater(n, f)
	runtime.Gosched()
}

// cont, reply and fail answer n where nothing is to be done if that comes too
// late.
func (s *supervisor) cont(n *notif)                  { s.answered(n.cont()) }
func (s *supervisor) reply(n *notif, val int)        { s.answered(n.reply(val)) }
func (s *supervisor) fail(n *notif, e syscall.Errno) { s.answered(n.fail(e)) }

func (s *supervisor) answered(err error) {
	if err != nil && !isGone(err) {
		s.log.Error("cannot answer a system call", "err", err)
	}
}

// connOf returns the connection of n's descriptor, or nil.
func (s *supervisor) connOf(n *notif) *conn {
	if !s.sockets.anyConn() {
		return nil
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		return nil
	}
	return s.sockets.conn(inode)
}
