// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"smcr/internal/place"
	"smcr/nl"
	"smcr/userstack/internal/bounded"
)

// ErrControlTaken means that another stack uses the address that was given to ServeControl.
var ErrControlTaken = errors.New("userstack: another stack already answers at this address")

// ServeControl lets the commands of smcr, and any [nl.Client], list and change this stack. It
// opens address and returns. Requests are served until ctx ends or the stack is closed. It
// may be called for several addresses.
//
// With the address "", this is the stack of its network namespace, like that of 'smcr serve':
// 'smcr linkgroup list' and [nl.DialUser] find it without any option. A network namespace has
// one such stack that runs as root, with its socket in /run/smcr. If there is one already,
// the error is [ErrControlTaken]. While the program has this place, 'smcr serve' and 'smcr
// run' start no other stack. A program that may not write to /run/smcr has its socket in
// $XDG_RUNTIME_DIR/smcr or /run/user/UID/smcr, where only its user finds it. A stack of root
// may then run beside it.
//
// Any other address is the path of a unix socket, or a name that begins with "@" in the
// abstract name space of the network namespace. 'smcr --backend unix:ADDRESS linkgroup list'
// uses it. Other stacks are not affected. A socket file that a killed program has left is
// replaced. The file is removed when serving ends.
//
// Everybody who can connect may list: for a path these are the users whom the permissions of
// the file allow, otherwise every user in the network namespace. Root and the user of this
// process may change. Clients trust a stack only if it runs as root or as their own user.
//
// The address is in the network namespace of the calling thread.
func (s *Stack) ServeControl(ctx context.Context, address string) error {
	if err := s.reg.enter(); err != nil {
		return err
	}
	l, leave, err := listenControl(address)
	if err != nil {
		s.reg.wg.Done()
		return err
	}
	srv := nl.NewServer(s.Control(), nl.ServerConfig{
		Logger: s.log, Guard: &s.guard,
		Receive: bounded.Receive, Close: bounded.CloseQueue, Refuse: bounded.RefuseQueue,
	})
	served := make(chan struct{})
	go s.guard.Func("the accept of commands", func() {
		defer close(served)
		if err := srv.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Error("cannot serve control requests any longer", "address", l.Addr(), "err", err)
		}
	})()
	go s.guard.Func("the end of the control address", func() {
		defer s.reg.wg.Done()
		select {
		case <-ctx.Done():
		case <-s.ctx.Done():
		case <-served:
		}
		// The address is free before the last requests have their answers.
		if err := leave(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Warn("cannot give the address of control requests back", "address", l.Addr(), "err", err)
		}
		_ = srv.Close()
		<-served
	})()
	return nil
}

// listenControl listens at the address, and returns a function that closes and removes it.
func listenControl(address string) (_ *net.UnixListener, leave func() error, err error) {
	if address == "" {
		return listenPlace()
	}
	l, err := nl.ListenUnix(address)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(address) {
		if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("userstack: replace the socket of a stack that is gone: %w", err)
		}
		l, err = nl.ListenUnix(address)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, nil, fmt.Errorf("%w: %s", ErrControlTaken, address)
	case err != nil:
		return nil, nil, fmt.Errorf("userstack: %w", err)
	}
	return l, l.Close, nil
}

// listenPlace listens at the place of the stack of the network namespace.
func listenPlace() (_ *net.UnixListener, leave func() error, err error) {
	claim, err := place.Take()
	switch {
	case errors.Is(err, place.ErrTaken):
		return nil, nil, fmt.Errorf("%w: it is the stack of this network namespace, see 'smcr info'; choose another address, for 'smcr --backend unix:ADDRESS'", ErrControlTaken)
	case err != nil:
		return nil, nil, fmt.Errorf("userstack: %w", err)
	}
	l, err := claim.Listen(place.Commands)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("userstack: %w", err), claim.Close())
	}
	return l, claim.Close, nil
}

// abandoned reports whether address is the path of a socket at which nobody
// listens.
func abandoned(address string) bool {
	if strings.HasPrefix(address, "@") {
		return false // the kernel removes these with their process
	}
	if fi, err := os.Lstat(address); err != nil || fi.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := net.DialTimeout("unixpacket", address, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
