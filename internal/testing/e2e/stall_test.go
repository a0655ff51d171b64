// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echoServer returns what each connection sends. A quarter of its queue is for connections of a host that was never met, while they are
// undecided: 20 of them have room.
const echoServer = `
import socket, sys, threading
l = socket.create_server((sys.argv[1], 7001), backlog=128)
def echo(s):
    while b := s.recv(65536):
        s.sendall(b)
    s.close()
print("listening", flush=True)
while True:
    threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()`

// echoClient sends pseudo-random blocks on 20 connections until its input ends, and checks
// what comes back. Every fourth connection is idle most of the time.
const echoClient = `
import hashlib, random, socket, sys, threading, time
over, failed, total = threading.Event(), [], [0]
def talk(n):
    try:
        s, r, first = socket.create_connection((sys.argv[1], 7001)), random.Random(n), True
        while not over.is_set():
            b = r.randbytes(r.randrange(1, 40000))
            s.sendall(b)
            got = b''
            while len(got) < len(b):
                d = s.recv(len(b) - len(got))
                if not d: raise EOFError('end of the stream')
                got += d
            if hashlib.sha256(got).digest() != hashlib.sha256(b).digest():
                raise ValueError('other bytes came back')
            total[0] += len(b)
            if first: started.release() # the server has it, too
            first = False
            time.sleep(1 if n % 4 == 0 else r.random() / 20)
        s.close()
    except Exception as e:
        failed.append('connection %d: %r' % (n, e))
        started.release()
started = threading.Semaphore(0)
all = [threading.Thread(target=talk, args=(n,)) for n in range(20)]
for t in all: t.start()
for t in all: started.acquire()
print('connected', flush=True)
time.sleep(float(sys.argv[2]))
over.set()
for t in all: t.join()
print(total[0], 'bytes', *failed, flush=True)
sys.exit(1 if failed else 0)`

// stallEnv is the name of an environment variable with a further time in seconds for which
// TestStackStandsStill stops stacks. It needs 3.5 times as long.
const stallEnv = "SMCR_E2E_STALL"

// TestStackStandsStill stops the stack of either host, as a debugger or a suspended machine
// does, under traffic on many connections. Nothing is lost if --stall-time allows that.
func TestStackStandsStill(t *testing.T) {
	t.Parallel()
	times := []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}
	if n, err := strconv.Atoi(os.Getenv(stallEnv)); err == nil {
		times = append(times, time.Duration(n)*time.Second)
	}
	for _, still := range times {
		t.Run(still.String(), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "/usr/bin/python3")
			var args []string
			if still > 5*time.Second { // longer than the default
				args = []string{"--stall-time", (still + 5*time.Second).String()}
			}
			stackA, stackB := l.serve(l.A, args...), l.serve(l.B, args...)
			server := l.under(l.A, "/usr/bin/python3", "-u", "-c", echoServer, l.A.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			w := l.watch()
			traffic := 3*time.Second + 5*still/2
			client := l.under(l.B, "/usr/bin/python3", "-u", "-c", echoClient, l.A.Addr(), fmt.Sprint(traffic.Seconds()))
			if err := client.WaitOutput("connected", startTime); err != nil {
				t.Fatalf("%v\n%s", err, client.Log())
			}
			for _, stack := range []interface{ Signal(os.Signal) error }{stackA, stackB} {
				if err := stack.Signal(unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				time.Sleep(still) // Real time: the stack stands still.
				if err := stack.Signal(unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // Real time: traffic goes on.
			}
			if err := client.Wait(traffic + time.Minute); err != nil {
				t.Errorf("%v\n%s", err, client.Log())
			}
			w.stop(t).wantSMC(t, 20, 1)
			server.Kill()
		})
	}
}
