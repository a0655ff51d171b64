// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// Shell runs a command on the terminal of the guest and waits for its end. This terminal
// is the standard input and output of this process. The guest must have been booted with
// [Config.Terminal]. Only one Shell should run at a time.
func (g *Guest) Shell(ctx context.Context, argv ...string) error {
	if !g.cfg.Terminal {
		return errors.New("guest: booted without a terminal")
	}
	c := g.Command(argv...)
	c.tty = true
	c.Dir = "/root"
	if w, h, err := term.GetSize(int(os.Stdin.Fd())); err == nil {
		c.size = [2]uint16{uint16(w), uint16(h)}
	}
	_, err := c.Run(ctx)
	return err
}

// KeepTerminal saves the state of the terminal of this process and returns a function
// that restores it: QEMU changes the state, and is killed at the end.
func KeepTerminal() (restore func() error, err error) {
	fd := int(os.Stdin.Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("guest: standard input is no terminal: %w", err)
	}
	return func() error { return term.Restore(fd, state) }, nil
}
