// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// deletePeers are a server that returns what it receives, and a client that prints how
// often it got its bytes back, after the number of its connection. It makes a new connection
// if the last one is reset.
const (
	returningServer = `
import socket, sys, threading
l = socket.socket()
l.bind((sys.argv[1], 7400)); l.listen(128)
print('listening', flush=True)
def serve(c):
    try:
        while b := c.recv(65536): c.sendall(b)
    except OSError: pass
    c.close()
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
`
	repeatingClient = `
import socket, sys, time
connection = 0
while True:
    connection += 1
    s = socket.create_connection((sys.argv[1], 7400))
    rounds = 0
    try:
        while True:
            out = (b'%08d' % rounds) * 500
            s.sendall(out)
            got = b''
            while len(got) < len(out):
                b = s.recv(65536)
                if not b: sys.exit('end of file')
                got += b
            if got != out: sys.exit('wrong bytes')
            rounds += 1
            print('connection', connection, 'round', rounds, flush=True)
            time.sleep(0.02)
    # A write after the reset fails with EPIPE: see docs/sockets.md.
    except (ConnectionResetError, BrokenPipeError): pass
`
)

var roundRE = regexp.MustCompile(`connection (\d+) round (\d+)\n`)

// deleting is a connection over a link group with two links.
type deleting struct {
	*lab
	client *netnstest.Process
}

// progress waits until the client has made ten more rounds on its connection of that
// number.
func (d *deleting) progress(connection int) {
	d.t.Helper()
	rounds := func() int {
		all := roundRE.FindAllStringSubmatch(d.client.Log(), -1)
		if len(all) == 0 || all[len(all)-1][1] != strconv.Itoa(connection) {
			return 0
		}
		n, _ := strconv.Atoi(all[len(all)-1][2])
		return n
	}
	begin := rounds()
	if err := netnstest.Until(settleTime, func() error {
		if n := rounds(); n < begin+10 {
			return fmt.Errorf("connection %d: round %d after %d", connection, n, begin)
		}
		return nil
	}); err != nil {
		d.t.Fatalf("%v\n%s", err, d.client.Log())
	}
}

// links waits until a host has one link group with n active links. It returns its ID, and
// the numbers of the links with the one that carries the connection at the end, and the
// netdev of each.
func (d *deleting) links(h *netnstest.Host, n int) (group string, ids []int, netdev map[int]string) {
	d.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		rows, err := d.rows(h, "link")
		if err != nil {
			return netnstest.Stop(err)
		}
		group, ids, netdev = "", nil, map[int]string{}
		last := 0
		for _, row := range rows {
			id, err := number(row, "id")
			if err != nil {
				return netnstest.Stop(err)
			}
			conns, err := number(row, "conns")
			if err != nil {
				return netnstest.Stop(err)
			}
			netdev[id], _ = row["netdev"].(string)
			switch g, _ := row["linkgroup"].(string); {
			case row["state"] != "ACTIVE" || group != "" && g != group:
				return fmt.Errorf("links of %s: %v", h.Name, rows)
			case conns > 0:
				group, last = g, id
			default:
				group, ids = g, append(ids, id)
			}
		}
		if last == 0 || len(rows) != n {
			return fmt.Errorf("links of %s: %v, want %d with a connection", h.Name, rows, n)
		}
		ids = append(ids, last)
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
	return group, ids, netdev
}

// TestDelete: an administrator on either side deletes the link without a connection. The
// other one stays alone until the netdev of the link has been down and up. Then the
// administrator deletes the link that carries the connection, and the connection continues
// over the other one. The only link is not deleted. The end of the whole link group resets
// the connection, and the next one makes a new group (RFC 7609, sections 3.5.4, 3.5.5.1.3
// and 3.5.5.1.4).
func TestDelete(t *testing.T) {
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			l, _ := newSwitchedLab(t, 2, "/usr/bin/python3")
			for _, h := range []*netnstest.Host{l.A, l.B} {
				l.ownAddresses(h)
				l.serve(h)
			}
			server := l.under(l.B, "/usr/bin/python3", "-u", "-c", returningServer, l.B.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			d := &deleting{lab: l, client: l.under(l.A, "/usr/bin/python3", "-u", "-c", repeatingClient, l.B.Addr())}
			at, other := l.A, l.B
			if side == "server" {
				at, other = other, at
			}
			d.progress(1)
			d.links(other, 2)
			group, ids, netdev := d.links(at, 2)
			l.smcr(at, "--backend", "user", "link", "delete", group, strconv.Itoa(ids[0]))
			_, left, _ := d.links(at, 1)
			d.links(other, 1)
			if left[0] != ids[1] {
				t.Errorf("link %d is left, and link %d was deleted", left[0], ids[0])
			}
			d.progress(1)
			for _, state := range []string{"down", "up"} {
				if out, err := at.Command(t.Context(), "ip", "link", "set", netdev[ids[0]], state).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			d.links(other, 2)
			_, ids, _ = d.links(at, 2)

			l.smcr(at, "--backend", "user", "link", "del", group, strconv.Itoa(ids[1]))
			_, left, _ = d.links(at, 1)
			d.links(other, 1)
			if left[0] != ids[0] {
				t.Errorf("link %d is left, and link %d was deleted", left[0], ids[1])
			}
			d.progress(1)

			// The only link stays, and what does not exist is not found.
			for _, args := range [][]string{{"link", "del", group, strconv.Itoa(left[0])}, {"link", "del", group, strconv.Itoa(ids[1])}, {"linkgroup", "del", "fffffe00"}} {
				if out, err := l.try(at, append([]string{"--backend", "user"}, args...)...); err == nil {
					t.Errorf("smcr %s succeeds: %s", strings.Join(args, " "), out)
				}
			}
			d.progress(1)

			before, _, _ := d.links(other, 1)
			begin := time.Now()
			l.smcr(at, "--backend", "user", "linkgroup", "del", group)
			d.progress(2)
			t.Logf("the next connection came %v after the end of the link group", time.Since(begin))
			for h, old := range map[*netnstest.Host]string{at: group, other: before} {
				rows, err := l.rows(h, "linkgroup")
				if err != nil || len(rows) != 1 || rows[0]["id"] == old {
					t.Errorf("link groups of %s: %v, %v, want a new one instead of %s", h.Name, rows, err, old)
				}
			}
		})
	}
}
