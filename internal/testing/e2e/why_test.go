// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// reader is a server that sends a greeting on each connection and reads what comes.
const reader = `
import socket, sys, threading
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
def serve(c):
    c.sendall(b"hello")
    while c.recv(65536):
        pass
while True:
    threading.Thread(target=serve, args=[l.accept()[0]], daemon=True).start()
`

// talker is a client that sends something again and again, and keeps its connection open.
const talker = `
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(c.recv(5), flush=True)
while True:
    c.sendall(bytes(1000))
    time.sleep(0.01)
`

// whyRow is a row of smcr why -o json, as far as the test looks at it.
type whyRow struct {
	Kind, Local, Remote, Carrier, Stack, Reason, Why, Advice, IBDev string
	Accepted                                                        bool
	Software                                                        bool `json:"software_roce"`
	Process                                                         *struct {
		PID     int
		Command string
		Under   bool `json:"under_smcr_run"`
	}
	Clients *struct{ SMC, TCP int }
	Traffic *struct {
		Sent     int  `json:"tx_bytes"`
		SentRate *int `json:"tx_bytes_per_second"`
	}
	Resent *struct {
		Total int
		Link  int
	}
}

// TestWhy asks about programs under smcr run and others, about connections and listeners, as root
// and as another user.
func TestWhy(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3", "setpriv", "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "python3", "-c", reader, l.A.Addr(), "8080")
	plainServer := l.B.Go(t, "python3", "-c", reader, l.B.Addr(), "8081")
	if err := errors.Join(server.WaitOutput("listening", startTime), plainServer.WaitOutput("listening", startTime)); err != nil {
		t.Fatal(err)
	}
	over := l.under(l.B, "python3", "-c", talker, l.A.Addr(), "8080")
	plain := l.B.Go(t, "python3", "-c", talker, l.A.Addr(), "8080")
	beside := l.B.Go(t, bin("smcr"), "run", "--mode", "user", "--", "python3", "-c", talker, l.B.Addr(), "8081")
	for _, p := range []*netnstest.Process{over, plain, beside} {
		if err := p.WaitPart("hello", startTime); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(h *netnstest.Host, as []string, args ...string) (rows []whyRow, err error) {
		argv := append(append(as, bin("smcr"), "why", "-o", "json", "--interval", "500ms"), args...)
		out, err := h.Output(t.Context(), argv[0], argv[1:]...)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			return nil, fmt.Errorf("%w in %q", err, out)
		}
		return rows, nil
	}
	one := func(rows []whyRow, err error, what string, is func(*whyRow) bool) whyRow {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var found []whyRow
		for i := range rows {
			if is(&rows[i]) {
				found = append(found, rows[i])
			}
		}
		if len(found) != 1 {
			t.Fatalf("%d rows of %s: %+v", len(found), what, rows)
		}
		return found[0]
	}
	listens := func(r *whyRow) bool { return r.Kind == "listener" }
	overSMC := func(r *whyRow) bool { return r.Kind == "connection" && r.Carrier == "SMCR" }
	overTCP := func(r *whyRow) bool { return r.Kind == "connection" && r.Carrier == "TCP" }
	pid := func(p *netnstest.Process) string { return strconv.Itoa(p.Pid()) }

	// The server, whose program is a child of what was started: smcr run -v waits for it.
	rows, err := ask(l.A, nil, ":8080")
	r := one(rows, err, "the listener", listens)
	if r.Carrier != "SMCR" || r.Stack != "user" || r.Clients == nil || r.Clients.SMC != 1 || r.Clients.TCP != 1 || r.Process == nil || !r.Process.Under || r.Process.Command != "python3" {
		t.Fatalf("listener: %+v %+v %+v", r, r.Process, r.Clients)
	}
	program := r.Process.PID
	r = one(rows, nil, "SMC-R", overSMC)
	if !r.Accepted || !r.Software || r.IBDev == "" || r.Process == nil || !r.Process.Under || r.Resent == nil || r.Resent.Link == 0 {
		t.Errorf("accepted over SMC-R: %+v", r)
	}
	r = one(rows, nil, "TCP", overTCP)
	if !r.Accepted || r.Reason != "peer-no-smc" || r.Stack != "user" || r.Process == nil || !strings.Contains(r.Advice, "Start the client's program with 'smcr run'") {
		t.Errorf("accepted over TCP: %+v", r)
	}
	if len(rows) != 3 {
		t.Errorf("%d rows: %+v", len(rows), rows)
	}
	rows, err = ask(l.A, nil, strconv.Itoa(program))
	if one(rows, err, "SMC-R of the server's process", overSMC); len(rows) != 3 {
		t.Errorf("the server's process: %+v", rows)
	}

	// The clients.
	rows, err = ask(l.B, nil, pid(over)) // smcr run -v, which waits
	r = one(rows, err, "the client", overSMC)
	if r.Accepted || r.Remote != l.A.Addr()+":8080" || r.Traffic == nil || r.Traffic.SentRate == nil || *r.Traffic.SentRate < 1000 || r.Traffic.Sent < 1000 {
		t.Errorf("client over SMC-R: %+v %+v", r, r.Traffic)
	}
	rows, err = ask(l.B, nil, pid(plain))
	r = one(rows, err, "the client without smcr run", overTCP)
	if r.Reason != "not-under-run" || r.Stack != "" || r.Process == nil || r.Process.PID != plain.Pid() || r.Process.Under ||
		!strings.Contains(r.Advice, "'smcr run -- ") || !strings.Contains(r.Advice, "python3 ...'") || !strings.Contains(r.Advice, "'smcr check "+l.A.Addr()+":8080'") ||
		r.Traffic == nil || r.Traffic.SentRate == nil || *r.Traffic.SentRate < 1000 {
		t.Errorf("client without smcr run: %+v %+v", r, r.Traffic)
	}
	rows, err = ask(l.B, nil, pid(beside))
	r = one(rows, err, "the client of a server of its host", overTCP)
	if r.Reason != "local" || r.Process == nil || r.Process.PID != beside.Pid() || !r.Process.Under {
		t.Errorf("client within the host: %+v %+v", r, r.Process)
	}
	rows, err = ask(l.B, nil, l.B.Addr()+":8081")
	if r = one(rows, err, "the listener without smcr run", listens); r.Reason != "not-under-run" || r.Carrier != "TCP" || r.Clients == nil || r.Clients.TCP != 1 {
		t.Errorf("listener without smcr run: %+v", r)
	}

	// Another user sees sockets, reasons and counters, as with ss and smcr connection list, but no
	// process.
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
	rows, err = ask(l.A, nobody, ":8080")
	r = one(rows, err, "the listener, for another user", listens)
	if r.Process != nil || r.Carrier != "SMCR" {
		t.Errorf("listener, for another user: %+v", r)
	}
	if r = one(rows, nil, "TCP, for another user", overTCP); r.Process != nil || r.Reason != "peer-no-smc" {
		t.Errorf("TCP, for another user: %+v", r)
	}
	rows, err = ask(l.B, nobody, ":8081")
	if r = one(rows, err, "a listener without smcr run, for another user", listens); r.Process != nil || r.Reason != "" || !strings.Contains(r.Why, "another user") {
		t.Errorf("listener without smcr run, for another user: %+v", r)
	}

	// Of its own programs it sees all.
	own := l.B.Go(t, nobody[0], append(nobody[1:], bin("smcr"), "run", "--mode", "user", "--", "/usr/bin/python3", "-c", reader, l.B.Addr(), "8082")...)
	if err := own.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	rows, err = ask(l.B, nobody, pid(own))
	if r = one(rows, err, "a listener of the user", listens); r.Process == nil || r.Process.PID != own.Pid() || !r.Process.Under || r.Carrier != "SMCR" {
		t.Errorf("a listener of the user: %+v %+v", r, r.Process)
	}

	fails := func(status int, text string, as []string, h *netnstest.Host, arg string) {
		t.Helper()
		_, err := ask(h, as, arg)
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok || e.ExitCode() != status || !strings.Contains(err.Error(), text) {
			t.Errorf("smcr why %s: %v, want status %d and %q", arg, err, status, text)
		}
	}
	fails(4, "sudo smcr why "+pid(plain), nobody, l.B, pid(plain))
	fails(3, "nsenter -t "+pid(plain)+" -n smcr why "+pid(plain), nil, l.A, pid(plain))
	fails(3, "no open TCP or SMC socket", nil, l.A, ":8099")
	fails(3, "there is no process 2147483647", nil, l.A, "pid:2147483647")

	// The text.
	out := l.smcr(l.A, "why", ":8080", "--interval", "200ms")
	for _, want := range []string{
		"Listener:     " + l.A.Addr() + ":8080\n", "under smcr run\n", "Announces:    SMC-R by the user-space stack\n", "Clients:      now 1 over SMC, 1 over TCP\n",
		"Carried by:   TCP\n", "Carried by:   SMC-R by the user-space stack, software RoCE soft-eth0\n", "Link group:   0", "'smcr explain peer-no-smc'", "Sent again:   ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestWhyTranslated: a host translates addresses between the program and the stack, at the client to another host and at the server to
// another port. The connection is still that of the program, and carried.
func TestWhyTranslated(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3", "nft", "sysctl")
	l.serve(l.A)
	l.serve(l.B)
	for h, rules := range map[*netnstest.Host]string{
		l.A: "add chain ip smcrtest in { type nat hook prerouting priority -100; }; add rule ip smcrtest in tcp dport 8088 redirect to :8080",
		l.B: fmt.Sprintf("add chain ip smcrtest out { type nat hook output priority -100; }; add rule ip smcrtest out ip daddr 127.0.0.1 tcp dport 7200 dnat to %s:8088; "+
			"add chain ip smcrtest post { type nat hook postrouting priority 100; }; add rule ip smcrtest post ip saddr 127.0.0.1 oifname eth0 masquerade", l.A.Addr()),
	} {
		if out, err := h.Output(t.Context(), "nft", "add table ip smcrtest; "+rules); err != nil {
			t.Fatal(err, out)
		}
	}
	if out, err := l.B.Output(t.Context(), "sysctl", "-w", "net.ipv4.conf.all.route_localnet=1"); err != nil {
		t.Fatal(err, out)
	}
	server := l.under(l.A, "python3", "-c", reader, l.A.Addr(), "8080")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.B, "python3", "-c", talker, "127.0.0.1", "7200")
	if err := client.WaitPart("hello", startTime); err != nil {
		t.Fatal(err)
	}
	for _, ask := range []struct {
		h      *netnstest.Host
		target string
	}{
		{l.B, strconv.Itoa(client.Pid())}, {l.B, "127.0.0.1:7200"}, {l.B, l.A.Addr() + ":8088"},
		{l.A, strconv.Itoa(server.Pid())}, {l.A, ":8080"}, {l.A, ":8088"},
	} {
		out := l.smcr(ask.h, "why", "-o", "json", "--interval", "0", ask.target)
		var rows []whyRow
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		rows = slices.DeleteFunc(rows, func(r whyRow) bool { return r.Kind == "listener" })
		if len(rows) != 1 || rows[0].Carrier != "SMCR" || rows[0].Process == nil || !rows[0].Process.Under || rows[0].Accepted != (ask.h == l.A) {
			t.Errorf("smcr why %s: %s", ask.target, out)
		}
	}
	// Of programs that are not under smcr run, nobody knows the address to which the host takes the connection. So the answer does not
	// say that it is within the machine, unless the other end is a socket there.
	inside := l.B.Go(t, "python3", "-c", reader, "127.0.0.1", "7201")
	if err := inside.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]string{"7200": "no socket here is the other end", "7201": "both ends are on this machine"} {
		bare := l.B.Go(t, "python3", "-c", talker, "127.0.0.1", port)
		if err := bare.WaitPart("hello", startTime); err != nil {
			t.Fatal(err)
		}
		if out := l.smcr(l.B, "why", "-o", "json", "--interval", "0", strconv.Itoa(bare.Pid())); !strings.Contains(out, want) || strings.Count(out, `"kind"`) != 1 {
			t.Errorf("smcr why of a program at port %s: %s", port, out)
		}
	}
}
