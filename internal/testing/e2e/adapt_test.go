// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/netnstest"
)

// echoing is a server that sends back what it receives.
const echoing = `
import socket, sys, threading
l = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=128)
print("listening", flush=True)
def serve(c):
    while True:
        b = c.recv(100)
        if not b:
            break
        c.sendall(b)
    c.close()
while True:
    threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
`

// asking makes a number of short connections, and then a number of connections that it
// holds, one after the other.
const asking = `
import socket, sys, time
def ask():
    c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    c.sendall(b"hello")
    got = c.recv(100)
    if got != b"hello":
        raise Exception(got)
    return c
for i in range(int(sys.argv[3])):
    ask().close()
print("asked", flush=True)
held = []
for i in range(int(sys.argv[4])):
    held.append(ask())
    time.sleep(0.3)
print("done", flush=True)
`

// adaptTime limits actions that take some seconds.
const adaptTime = time.Minute

// adapt starts a client under smcr run.
func (l *lab) adapt(server string, short, held int, flags ...string) *netnstest.Process {
	argv := append([]string{"run", "--mode", "user", "-v"}, flags...)
	argv = append(argv, "--", "python3", "-c", asking, server, "8080", fmt.Sprint(short), fmt.Sprint(held))
	return l.B.Go(l.t, bin("smcr"), argv...)
}

// TestAdapt: after many connections in a row that gain nothing from SMC-R, the next ones
// are TCP, and are listed with the reason. A connection that gains from SMC-R ends this.
func TestAdapt(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "python3", "-c", echoing, l.A.Addr(), "8080")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	const short, row = 150, 32
	t.Run("short", func(t *testing.T) {
		c := l.adapt(l.A.Addr(), short, 100)
		if err := c.WaitOutput("asked", adaptTime); err != nil {
			t.Fatal(err)
		}
		// held counts the connections that the client holds, by their mode in the
		// listing.
		held := func() (smc, tcp int, err error) {
			rows, err := l.rows(l.B, "connection")
			if err != nil {
				return 0, 0, err
			}
			for _, r := range rows {
				f, _ := r["fallback"].(map[string]any)
				switch {
				case r["mode"] == "SMCR":
					smc++
				case fmt.Sprint(f["reason"]) == "0x03fe0000" && fmt.Sprint(f["text"]) == "connections to the peer were too short for SMC":
					tcp++
				default:
					return 0, 0, fmt.Errorf("listed: %v", r)
				}
			}
			return smc, tcp, nil
		}
		var log string
		if err := netnstest.Until(adaptTime, func() error {
			smc, tcp, err := held()
			log = fmt.Sprintf("%d connections over SMC-R, %d over TCP", smc, tcp)
			if err == nil && (smc < 3 || tcp == 0) { // a first attempt, and two after it
				err = fmt.Errorf("held: %s", log)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Log("held:", log)
		c.Kill()
	})
	for _, test := range []struct {
		name  string
		flags []string
		check func(s bench.Summary) bool
		why   string
	}{
		{"short, to the end", nil, func(s bench.Summary) bool { return s.SMC >= row && s.SMC <= short/2 && s.SMC+s.TCP == short }, "too short for SMC"},
		{"--no-adapt", []string{"--no-adapt"}, func(s bench.Summary) bool { return s.SMC == short && s.TCP == 0 }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := l.adapt(l.A.Addr(), short, 0, test.flags...)
			if err := c.Wait(adaptTime); err != nil {
				t.Fatalf("%v\n%s", err, c.Log())
			}
			s, err := bench.ParseSummary([]byte(c.Log()))
			if err != nil || !test.check(s) || !strings.Contains(c.Log(), test.why) {
				t.Errorf("%+v, %v\n%s", s, err, c.Log())
			}
		})
	}
	l.wantNoConnections(l.A, l.B)
}

// TestAdaptNoPeer is TestAdapt with a server without SMC.
func TestAdaptNoPeer(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3")
	l.serve(l.B)
	server := l.A.Go(t, "python3", "-c", echoing, l.A.Addr(), "8080")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	c := l.adapt(l.A.Addr(), 100, 8)
	if err := c.WaitOutput("asked", adaptTime); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Until(adaptTime, func() error {
		rows, err := l.rows(l.B, "connection")
		if err != nil {
			return err
		}
		n := 0
		for _, r := range rows {
			f, _ := r["fallback"].(map[string]any)
			if r["remote"] == l.A.Addr()+":8080" && fmt.Sprint(f["reason"]) == "0x03010000" {
				n++
			}
		}
		if n < 5 {
			return fmt.Errorf("%d of %d rows with the reason", n, len(rows))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(adaptTime); err != nil {
		t.Fatalf("%v\n%s", err, c.Log())
	}
	if s, err := bench.ParseSummary([]byte(c.Log())); err != nil || s.SMC != 0 || s.TCP != 108 || !strings.Contains(c.Log(), "108 over TCP: the peer does not speak SMC") {
		t.Errorf("%+v, %v\n%s", s, err, c.Log())
	}
}
