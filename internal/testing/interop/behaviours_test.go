// SPDX-License-Identifier: Apache-2.0

package interop

import "smcr/userstack/wire"

// Reasons for differences if one side is the user-space stack.
const (
	becauseReset  = "a reset ends TCP below by RST (RFC 7609, 4.8.2), and poll, recv and SO_ERROR tell the program of it as they do with TCP: HUP beside ERR, ECONNRESET in place of the end"
	becauseEnd    = "a close is an end of the stream on the wire, as with TCP: whether the program still reads shows when data comes for it, which makes the connection a reset, where Linux says at once that it does not, and refuses the data where it is sent"
	becauseOver   = "when both directions have ended nothing is left to be carried: the connection is closed at once, before the program closes its socket"
	becauseLinger = "SO_LINGER with zero is a reset, as with TCP"
	becauseUrgent = "two kernels wait for each other; a kernel that sends does not wait with us, and we do not wait for a kernel that is known never to confirm the urgent byte"
)

// moment is the step at which the states of both sides are compared.
const moment = "wait=go"

var behaviours = []behaviour{
	{
		name:   "half-close",
		client: "send=1000 shut=w touch=c wait=go recv=300000 drain close",
		server: "recv=1000 drain touch=s wait=go send=300000 close",
	}, {
		name:   "half-close-server",
		client: "recv=1000 drain touch=c wait=go send=300000 close",
		server: "send=1000 shut=w touch=s wait=go recv=300000 drain close",
	}, {
		name:    "half-close-both",
		client:  "send=1000 shut=w recv=1000 drain touch=c wait=go close",
		server:  "recv=1000 drain send=1000 shut=w touch=s wait=go close",
		race:    true,
		because: becauseOver,
	}, {
		name:    "close",
		client:  "send=10 wait=got close touch=closed",
		server:  "recv=10 touch=got wait=closed pause=300 poll drain send=10 pause=300 send=10 close",
		because: becauseEnd,
	}, {
		name:    "close-server",
		client:  "recv=10 touch=got wait=closed pause=300 poll drain send=10 pause=300 send=10 close",
		server:  "send=10 wait=got close touch=closed",
		because: becauseEnd,
	}, {
		name:    "close-both",
		client:  "send=10 recv=10 touch=c wait=go close",
		server:  "send=10 recv=10 touch=s wait=go close",
		race:    true,
		without: wire.ConnSendingDone, // our program's end is told before the other one is known, or with it
	}, {
		name:    "close-unread",
		client:  "send=100 wait=sent pause=300 close touch=closed",
		server:  "recv=100 send=5000 touch=sent wait=closed pause=300 poll send=100 error drain close",
		because: becauseReset,
	}, {
		name:    "close-unread-server",
		client:  "recv=100 send=5000 touch=sent wait=closed pause=300 poll send=100 error drain close",
		server:  "send=100 wait=sent pause=300 close touch=closed",
		because: becauseReset,
	}, {
		name:    "close-unread-after-data",
		client:  "send=100 wait=sent pause=300 close touch=closed",
		server:  "send=5000 touch=sent wait=closed pause=300 poll recv=100 drain send=100 close",
		because: becauseReset,
	}, {
		name:    "close-unread-both",
		client:  "send=5000 touch=c wait=go close",
		server:  "send=5000 touch=s wait=go close",
		race:    true,
		because: becauseReset,
	}, {
		name:    "close-unread-blocked",
		client:  "recv=10 wait=full pause=300 close",
		server:  "send=10 eager=full stream error drain close",
		because: becauseReset,
	}, {
		name:    "linger",
		client:  "send=100 linger0 wait=got close touch=closed",
		server:  "recv=100 touch=got wait=closed pause=300 poll drain send=100 pause=300 send=10 close",
		because: becauseLinger,
		unlikeTCP: map[string]string{
			"server": "Linux ends the connection of a client with SO_LINGER zero in order, so no reset comes",
		},
	}, {
		name:    "shutdown-read",
		client:  "send=10 shut=r touch=shut wait=sent pause=300 recv=10 poll close touch=closed",
		server:  "recv=10 wait=shut pause=300 send=5000 touch=sent wait=closed pause=300 send=10 drain close",
		because: becauseReset,
	}, {
		name:   "slow-reader",
		client: "send=8000000 shut=w drain close",
		server: "pause=700 slow=1000000 recv=7000000 drain close",
	}, {
		name:    "windows-closed",
		client:  "eager=c wait=s wait=go take=s shut=w drain close",
		server:  "eager=s wait=c wait=go take=c drain shut=w close",
		race:    true,
		because: becauseOver,
	}, {
		name:    "kill",
		client:  "send=10 wait=got kill",
		server:  "recv=10 touch=got drain send=10 pause=300 send=10 close",
		because: becauseEnd,
	}, {
		name:    "kill-server",
		client:  "recv=10 touch=got drain send=10 pause=300 send=10 close",
		server:  "send=10 wait=got kill",
		because: becauseEnd,
	}, {
		name:    "kill-unread",
		client:  "recv=10 wait=full pause=300 kill",
		server:  "send=10 eager=full stream error close",
		because: becauseReset,
	}, {
		name:    "urgent",
		client:  "send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-nonblocking",
		client:  "send=5 wait=got oob=! touch=oob sendnb=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:   "urgent-inline",
		client: "wait=inline send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server: "inline touch=inline recv=5 touch=got wait=oob pause=200 byte recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-ignored",
		client: "send=5 wait=got oob=! touch=oob send=5 shut=w drain close",
		server: "recv=5 touch=got wait=oob recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:    "urgent-mark",
		client:  "send=5 wait=got oob=! touch=oob pause=200 send=5 shut=w drain close",
		server:  "recv=5 touch=got wait=oob pri mark=1 recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-first",
		client:  "wait=ready oob=! touch=oob send=5 shut=w drain close",
		server:  "touch=ready wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:   "urgent-taken-first",
		client: "send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "wait=oob pri recvoob recv=10 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-behind-read",
		client: "send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "wait=oob pause=200 recv=10 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-while-reading",
		client: "send=5 wait=got pause=200 oob=! pause=300 send=5 shut=w drain close",
		server: "recv=5 touch=got recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:   "urgent-inline-slow",
		client: "wait=inline send=5 oob=! touch=oob send=5 shut=w drain close",
		server: "inline touch=inline wait=oob pause=200 recv=5 pause=700 byte recv=5 drain close",
		limit:  urgentLimit,
	}, {
		name:    "urgent-twice",
		client:  "wait=ready oob=1 touch=oob wait=took oob=2 send=5 shut=w drain close",
		server:  "touch=ready wait=oob pri recvoob touch=took pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-often",
		client:  "send=5 wait=g1 oob=1 touch=o1 send=5 wait=g2 oob=2 touch=o2 send=5 wait=g3 oob=3 touch=o3 send=200000 shut=w drain close",
		server:  "recv=5 touch=g1 wait=o1 pri recvoob recv=5 touch=g2 wait=o2 pri recvoob recv=5 touch=g3 wait=o3 pri recvoob recv=200000 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-wrap",
		client:  "send=65535 wait=got oob=! touch=oob send=70000 shut=w drain close",
		server:  "recv=65535 touch=got wait=oob pri recvoob recv=70000 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	}, {
		name:    "urgent-full",
		client:  "eager=full oob=! touch=oob send=5 shut=w drain close",
		server:  "wait=full pause=200 take=full wait=oob pri recvoob recv=5 drain close",
		limit:   urgentLimit,
		because: becauseUrgent,
	},
}
