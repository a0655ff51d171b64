// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
	"smcr/userstack/relay"
)

// wantUrgent waits for the urgent byte, as poll tells it.
func (p *program) wantUrgent(want byte) {
	p.t.Helper()
	socktest.WantUrgent(p.t, p.fd, want)
}

// urge sends s, of which the last byte is urgent.
func (p *program) urge(s string) {
	p.t.Helper()
	if err := unix.Sendto(p.fd, []byte(s), unix.MSG_OOB, nil); err != nil {
		p.t.Fatal(err)
	}
}

// TestUrgent carries MSG_OOB between two programs over SMC-R, both ways,
// alone and among data, with SO_OOBINLINE and without.
func TestUrgent(t *testing.T) {
	socktest.NeedOOB(t)
	c := newCarried(t, os.Geteuid())
	for _, way := range []struct {
		from, to *program
		conn     *broker.ClientConn // of to
	}{{c.cprog, c.sprog, c.sc}, {c.sprog, c.cprog, c.cc}} {
		from, to := way.from, way.to
		from.urge("!")
		to.wantUrgent('!')
		from.write("after it")
		to.read("after it")
		from.write("before")
		from.urge(" it?")
		// The service does not know that the program has read the one before.
		next(t, way.conn, broker.EventDropUrgent)
		relay.DropUrgent(to.fd)
		if err := way.conn.UrgentDropped(); err != nil {
			t.Fatal(err)
		}
		from.write("behind")
		to.wantUrgent('?')
		to.read("before it")
		to.read("behind")
		if err := unix.SetsockoptInt(to.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1); err != nil {
			t.Fatal(err)
		}
		from.write("one ")
		from.urge("2")
		to.read("one ")
		testkind.Eventually(t, "not at the mark", func() (any, bool) {
			at, err := unix.IoctlGetInt(to.fd, unix.SIOCATMARK)
			if err != nil {
				t.Fatal(err)
			}
			return at, at != 0
		})
		to.read("2")
		from.write(" three")
		to.read(" three")
	}
	c.cprog.shutdown()
	c.sprog.wantEnd(nil)
	c.sprog.close()
	c.cprog.wantEnd(nil)
}

// TestUrgentIgnored: a program that takes no notice of urgent bytes never sees
// those before which it had read everything, as with TCP.
func TestUrgentIgnored(t *testing.T) {
	socktest.NeedOOB(t)
	c := newCarried(t, os.Geteuid())
	for i := range 4 {
		c.cprog.write("data")
		c.cprog.urge("!")
		if i > 0 { // the program has not read since it stood before the last one
			next(t, c.sc, broker.EventDropUrgent)
			relay.DropUrgent(c.sprog.fd)
			if err := c.sc.UrgentDropped(); err != nil {
				t.Fatal(err)
			}
		}
		c.sprog.wantUnread(5)
		c.sprog.read("data")
	}
	c.cprog.shutdown()
	c.sprog.wantEnd(nil)
	c.sprog.close()
	c.cprog.wantEnd(nil)
}
