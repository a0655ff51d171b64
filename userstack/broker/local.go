// SPDX-License-Identifier: Apache-2.0

package broker

import "context"

// Local gives the program one end of a pair whose other end is for the program at
// the peer, in the place of its TCP socket, which is connected. end stays the
// caller's.
//
// In Handler.Connect it takes the place of Established and Ready, waits for the
// launcher, and reports whether the program has the end. If not, the TCP socket is
// the program's, as after Established(false). In Handler.Accept it takes the place
// of TakeOver and Ready, and does not wait: a launcher that cannot pass the end on
// closes it.
func (c *Conn) Local(ctx context.Context, end *Descriptor) (placed bool, err error) {
	m := Message{Type: TypeLocal, Mode: ModeLocal, Conn: c.id}
	if err := end.Control(func(fd int) error { return c.ss.t.send(&m, fd) }); err != nil {
		c.ss.t.shut()
		return false, err
	}
	if c.accept {
		return true, nil
	}
	a, err := c.await(ctx, TypeProceed, TypeRelease)
	return err == nil && a.t == TypeProceed, err
}
