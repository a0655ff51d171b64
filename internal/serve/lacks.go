// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/plain"
	"smcr/internal/printable"
)

// lacks knows what keeps a stack from doing all that it could.
type lacks struct {
	capabilities []string     // those that are missing, with what is lost
	wire         error        // why connections of programs are not taken; or nil
	v2           func() error // why devices have no RoCE version 2
	dead         func() []int // see service.Service.Dead
}

// now returns whether devices have RoCE version 2, and everything that is lacking.
func (l *lacks) now() (v2 bool, all []string) {
	all = append(all, l.capabilities...)
	if l.wire != nil {
		all = append(all, l.noWire())
	}
	err := l.v2()
	if err != nil {
		all = append(all, plain.Text(l.why(err).Error()))
	}
	return err == nil, all
}

// noWire returns why connections of programs are not taken at the devices, or "".
func (l *lacks) noWire() string {
	if l.wire == nil {
		return ""
	}
	return "the stack cannot take connections of programs at the devices, so they stay TCP: " + plain.Text(printable.Sprintf("%v", l.wire))
}

// why returns a reason that names the process, if the stack before this one still has the port of
// RoCE version 2. The kernel gives no process the sockets of another one that is dead.
func (l *lacks) why(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) || l.dead == nil {
		return err
	}
	dead := l.dead()
	if len(dead) == 0 {
		return err
	}
	who := "process"
	if len(dead) > 1 {
		who = "processes"
	}
	return fmt.Errorf("no RoCE version 2: UDP port 4791 still belongs to %s %s, the stack before this one, which was killed and cannot end "+
		"before one of its system calls does: restart this stack then",
		who, strings.Trim(fmt.Sprint(dead), "[]"))
}
