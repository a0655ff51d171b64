// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"syscall"
)

// levelAdopt is the Level of a TypeListen that is for an Adopter. A service that does not
// know it handles the message as Listen, which is right for a socket with a mark.
const levelAdopt = 1

// An Adopter is a [Handler] that lets several launchers have one listening socket. Programs
// pass such sockets to each other.
type Adopter interface {
	// Adopt records that the launcher sees each accept() of its program on sock, which
	// listens already. It is ENOENT if sock has no mark: then some processes may accept
	// connections without a launcher. sock is closed after the call.
	Adopt(ctx context.Context, l *Launcher, sock *Descriptor) error
}

// A Refuser is a [Handler] that wants to know of the accepted connections that it does not
// get, because there is no quota for them: the launcher itself deals with the peer.
type Refuser interface {
	// Refused is called with the accepted socket, which the caller closes.
	Refused(sock *Descriptor)
}

// Adopt tells the service that the program accepts connections on a TCP socket that listens
// already, and which another launcher may have announced: see [Adopter]. The caller still
// owns sock. The errors are those of Listen; ENOENT is that of a socket that nobody has
// announced.
func (cl *Client) Adopt(ctx context.Context, sock int) error {
	_, err := cl.request(ctx, Message{Type: TypeListen, Level: levelAdopt}, sock)
	return err
}

// listen makes the handler mark the socket d.
func (ss *session) listen(ctx context.Context, m Message, d *Descriptor) {
	if err := ss.s.Quota.Take(ss.l.UID, 1); err != nil {
		_ = d.Close()
		ss.s.warnings.Warn("listening socket refused", "uid", ss.l.UID, "err", err)
		ss.result(m.Seq, nil, err)
		return
	}
	ss.request(m, func() ([]byte, error) {
		defer ss.s.Quota.Give(ss.l.UID, 1)
		defer d.Close()
		if m.Level != levelAdopt {
			return nil, ss.s.Handler.Listen(ctx, ss.l, d)
		}
		if a, ok := ss.s.Handler.(Adopter); ok {
			return nil, a.Adopt(ctx, ss.l, d)
		}
		return nil, syscall.EOPNOTSUPP
	})
}
