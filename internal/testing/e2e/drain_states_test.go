// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// drainKinds are the states in which connections are when their stack ends.
var drainKinds = []string{"idle", "half", "down", "up", "unread", "closed"}

// drained is both ends of connections in each state. They print how each connection has ended.
const drained = `
import os, select, socket, sys, threading
role, host, kinds = sys.argv[1], sys.argv[2], sys.argv[3:]
def gone(c): # waits until the connection is reset, whatever can be read
    p = select.poll()
    p.register(c, 0)
    p.poll()
    err = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if err: raise OSError(err, os.strerror(err))
    c.send(b'x')
def rest(c):
    while c.recv(1 << 16): pass
def pour(c):
    while True: c.sendall(bytes(1 << 16))
def fill(c): # as much as is taken
    p = select.poll()
    p.register(c, select.POLLOUT)
    c.setblocking(False)
    while p.poll(1000):
        c.send(bytes(1 << 16))
    c.setblocking(True)
def unread(c):
    p = select.poll()
    p.register(c, 0)
    p.poll()
    rest(c)
def half(c):
    rest(c) # its peer has ended the stream
    gone(c)
ends = dict(idle=rest, half=half, down=pour, up=rest, unread=unread, closed=unread)
def run(kind, f, c):
    try:
        f(c)
        how = 'end of stream'
    except OSError as e:
        how = 'reset' if e.errno in (104, 32) else str(e)
    os.write(1, ('%s %s %s\n' % (role, kind, how)).encode())
def start(kind, f, c):
    threading.Thread(target=run, args=(kind, f, c)).start()
if role == 'server':
    l = socket.create_server((host, 7800))
    print('listening', flush=True)
    for _ in kinds:
        c, _ = l.accept()
        kind = c.recv(8, socket.MSG_WAITALL).decode().strip()
        c.sendall(b'k')
        start(kind, ends[kind], c)
else:
    for kind in kinds:
        c = socket.create_connection((host, 7800))
        c.sendall(kind.ljust(8).encode())
        c.recv(1)
        if kind == 'half': c.shutdown(socket.SHUT_WR)
        if kind in ('unread', 'closed'): fill(c)
        if kind == 'closed': c.close()
        else: start(kind, dict(idle=rest, half=rest, down=rest, up=pour, unread=gone)[kind], c)
    print('ready', flush=True)
`

// TestDrainStates: what is left at the end of a stack, after its drain timeout or a signal, is reset at both ends, in
// whatever state it is: no program takes the end for that of a stream.
func TestDrainStates(t *testing.T) {
	for _, end := range []string{"drain", "signal"} {
		for _, role := range []string{"server", "client"} { // of the host whose stack ends
			t.Run(end+"/"+role, func(t *testing.T) {
				l := newLab(t, "/usr/bin/python3")
				old := l.serve(l.A, "--drain-timeout", "1s")
				l.serve(l.B)
				at, from := l.A, l.B
				if role == "client" {
					at, from = l.B, l.A
				}
				program := func(h *netnstest.Host, role, says string) *netnstest.Process {
					argv := append([]string{"/usr/bin/python3", "-u", "-c", drained, role, at.Addr()}, drainKinds...)
					p := l.under(h, argv...)
					if err := p.WaitOutput(says, startTime); err != nil {
						t.Fatal(err)
					}
					return p
				}
				server := program(at, "server", "listening")
				client := program(from, "client", "ready")
				if end == "drain" {
					l.takeOver(l.A)
				} else if err := old.Signal(unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := old.Wait(endTime); err != nil {
					t.Fatalf("the stack: %v\n%s", err, old.Log())
				}
				if want := fmt.Sprint("connections=", len(drainKinds)); end == "drain" && !strings.Contains(lastLine(old.Log(), "drain timeout is over"), want) {
					t.Errorf("the stack does not say %s:\n%s", want, old.Log())
				}
				for _, kind := range drainKinds {
					for _, p := range []struct {
						role string
						*netnstest.Process
					}{{"server", server}, {"client", client}} {
						if p.role == "client" && kind == "closed" {
							continue // nobody is left there
						}
						said := ""
						err := netnstest.Until(settleTime, func() error {
							if said = lastLine(p.Log(), p.role+" "+kind+" "); said == "" {
								return fmt.Errorf("the %s does not see the end of %s", p.role, kind)
							}
							return nil
						})
						if want := p.role + " " + kind + " reset"; err != nil || said != want {
							t.Errorf("%q, want %q, %v", said, want, err)
						}
					}
				}
				client.Kill()
				server.Kill()
			})
		}
	}
}
