// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"smcr/internal/plain"
	"smcr/internal/run"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/broker"

	"golang.org/x/sys/unix"
)

// closeWait is the time limit for the orderly end of the test connection.
const closeWait = 2 * time.Second

// probeUser connects in the same way as a program under smcr run: the stack gets a TCP
// socket and reports the result.
func probeUser(ctx context.Context, ctl nl.Control, remote netip.AddrPort) (out outcome, err error) {
	session, _, err := run.Session(ctx, "smcr check "+remote.String())
	if err != nil {
		return out, err
	}
	defer session.Close()
	fd, err := socket(family(remote.Addr()), unix.IPPROTO_TCP)
	if err != nil {
		return out, err
	}
	defer unix.Close(fd)
	begin := time.Now()
	conn, err := session.Connect(fd, broker.ConnectRequest{Remote: remote})
	if err != nil {
		return out, err
	}
	for {
		select {
		case <-ctx.Done():
			_ = conn.Cancel()
			if out.Took == 0 {
				out.TCPError = context.Cause(ctx)
			} else {
				out.Text = "the CLC handshake did not finish in time"
			}
			return out, nil
		case ev, ok := <-conn.Events():
			if !ok {
				return out, errors.Join(session.Err(), errors.New("the stack gave up on the connection"))
			}
			done, err := out.user(ctx, ctl, conn, ev, fd, remote, begin)
			if done || err != nil {
				return out, err
			}
		}
	}
}

// user handles the next event of a connection. It reports whether the outcome is
// known.
func (o *outcome) user(ctx context.Context, ctl nl.Control, conn *broker.ClientConn, ev broker.Event, fd int, remote netip.AddrPort, begin time.Time) (bool, error) {
	switch ev.Kind {
	case broker.EventNotCandidate:
		o.Reason = smc.Diagnosis(ev.Reason)
		if o.Took != 0 { // the TCP connection was established
			o.Text = plain.Text(ev.Text)
			return true, nil
		}
		o.NotCandidate = plain.Text(ev.Text)
		return true, nil
	case broker.EventFailed:
		if o.Took != 0 { // the TCP connection was established
			o.Text = plain.Text(ev.Text)
			return true, nil
		}
		o.TCPError = ev.Errno
		return true, nil
	case broker.EventEstablished:
		o.Took = time.Since(begin)
		o.Local = localAddr(fd)
		o.Announced = ev.PeerSMC
		if !ev.PeerSMC {
			o.Text, o.Reason = plain.Text(ev.Text), smc.Diagnosis(ev.Reason)
			return true, nil
		}
		return false, conn.Proceed()
	case broker.EventReady:
		if ev.Mode == broker.ModeTCP {
			o.declined(ev)
			return true, conn.Release()
		}
		o.SMC = true
		if c := find(ctx, ctl, o.Local, remote); c != nil {
			o.LinkGroup = c.LinkGroup
			if c.Link != nil {
				o.IBDev = c.Link.IBDev
			}
		}
		return true, end(ctx, conn)
	case broker.EventClosed:
		return true, errors.New("the stack closed the connection: " + ev.Text)
	}
	return false, nil
}

// end closes a connection over SMC-R in order, so that the peer's program reads end of
// file and does not get a reset.
func end(ctx context.Context, conn *broker.ClientConn) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = conn.Cancel()
		return os.NewSyscallError("socketpair", err)
	}
	err = conn.Attach(pair[1])
	_ = unix.Close(pair[1])
	_ = unix.Close(pair[0])
	if err != nil {
		return err
	}
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-conn.Events():
			if !ok {
				return nil
			}
		case <-timer.C:
			return nil // the peer's program does not read: the session's end resets it
		case <-ctx.Done():
			return nil
		}
	}
}

// declined records why the stack left a connection to TCP.
func (o *outcome) declined(ev broker.Event) {
	o.Text = plain.Text(ev.Text)
	o.Reason = smc.Diagnosis(ev.Reason)
	if o.Remote = o.Reason == smc.DiagPeerDeclined; o.Remote {
		o.Reason = smc.Diagnosis(ev.PeerReason)
	}
}
