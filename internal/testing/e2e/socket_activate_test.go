// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// activatedThree is a program that has a listening socket of systemd-socket-activate(1), and serves three connections.
const activatedThree = `
import os, socket
assert os.environ['LISTEN_FDS'] == '1', os.environ
me = os.environ['LISTEN_PID'] == str(os.getpid())
s = socket.socket(fileno=3)
for i in range(3):
    c, _ = s.accept()
    c.sendall(c.recv(99).upper() + (b' mine' if me else b' not mine'))
    c.close()
`

// acceptedOne is a program that has a connection as its standard input.
const acceptedOne = `
import socket
s = socket.socket(fileno=0)
s.sendall(s.recv(99).upper() + b' mine')
s.close()
`

// askThree asks one of both three times.
const askThree = `
import socket, sys
for i in range(3):
    c = socket.create_connection((sys.argv[1], 7000), timeout=20)
    c.sendall(b'hello')
    print(c.recv(99).decode())
    c.close()
`

// TestSocketActivate: a program has the sockets that somebody else has made for it as without smcr, whether smcr run is
// inside or outside of who made them. Connections of listening sockets use SMC-R in both cases; inside, also those that were accepted before.
func TestSocketActivate(t *testing.T) {
	l := newLab(t, "systemd-socket-activate", "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	run := underArgv()
	activate := []string{"systemd-socket-activate", "-l", l.A.Addr() + ":7000"}
	inetd := append(activate[:len(activate):len(activate)], "--accept", "--inetd")
	listening := []string{"/usr/bin/python3", "-c", activatedThree}
	accepted := []string{"/usr/bin/python3", "-c", acceptedOne}
	join := func(all ...[]string) (argv []string) {
		for _, a := range all {
			argv = append(argv, a...)
		}
		return argv
	}
	for _, c := range []struct {
		name  string
		argv  []string
		least int // connections over SMC-R
	}{
		{"bare", join(activate, listening), 0},
		{"outside", join(activate, run, listening), 2}, // the first one has begun before the program
		{"inside", join(run, activate, listening), 3},
		{"inetd, bare", join(inetd, accepted), 0},
		{"inetd, outside", join(inetd, run, accepted), 0}, // made before the program
		{"inetd, inside", join(run, inetd, accepted), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := l.A.Go(t, c.argv[0], c.argv[1:]...)
			defer p.Kill()
			if err := p.WaitOutput("Listening on", startTime); err != nil {
				t.Fatal(err, p.Log())
			}
			client := l.under(l.B, "/usr/bin/python3", "-c", askThree, l.A.Addr())
			if err := client.Wait(endTime); err != nil {
				t.Fatalf("%v\n%s\n%s", err, client.Log(), p.Log())
			}
			log := client.Log()
			m := summaryRE.FindStringSubmatch(log)
			if strings.Count(log, "HELLO mine\n") != 3 || m == nil || m[1] < fmt.Sprint(c.least) || c.least == 0 && m[1] != "0" {
				t.Errorf("want three answers, %d over SMC-R:\n%s\n%s", c.least, log, p.Log())
			}
		})
	}
}
