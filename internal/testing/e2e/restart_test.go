// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// greeter is a server that sends first.
const greeter = `
import asyncio, sys
async def serve(r, w):
    w.write(b'hello\n')
    line = await r.readline()
    w.write(line)
    await w.drain()
    w.close()
async def main():
    async with await asyncio.start_server(serve, sys.argv[1], 7000) as s:
        print('listening', flush=True)
        await s.serve_forever()
asyncio.run(main())
`

// asker connects to each server again and again, with one connection for each question,
// and prints failures. On command, it pauses between two rounds.
const asker = `
import select, socket, sys, time
addr = sys.argv[1]
rounds = int(sys.argv[2])
def ask(port, question, want, greeting=b''):
    step = 'connect'
    try:
        with socket.create_connection((addr, port), timeout=10) as s:
            step = 'greeting'
            got = b''
            while len(got) < len(greeting):
                b = s.recv(100)
                if not b: raise OSError('end of file')
                got += b
            step = 'send'
            s.sendall(question)
            step = 'receive'
            got = got[len(greeting):]
            while not got.endswith(want):
                b = s.recv(4096)
                if not b: raise OSError('end of file after %r' % got)
                got += b
    except OSError as e:
        print('FAILED', port, step, e, flush=True)
n = 0
while rounds == 0 or n < rounds:
    if rounds == 0 and select.select([sys.stdin], [], [], 0.005)[0]:
        if not sys.stdin.readline(): break
        print('paused', flush=True)
        if not sys.stdin.readline(): break
    ask(80, b'GET /small HTTP/1.0\r\n\r\n', b'the answer')
    ask(6379, b'PING\r\n', b'+PONG\r\n')
    ask(7000, b'over\n', b'over\n', b'hello\n')
    n += 1
    print('asked', n, flush=True)
`

// client is an asker that is running.
type client struct {
	*netnstest.Process
	in     io.Writer
	pauses int
}

func (l *lab) asker(argv ...string) *client {
	l.t.Helper()
	cmd := l.B.Command(context.Background(), argv[0], append(argv[1:len(argv):len(argv)], "/usr/bin/python3", "-u", "-c", asker, l.A.Addr(), "0")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	return &client{Process: l.B.GoCmd(l.t, cmd), in: in}
}

func (c *client) tell(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// pause waits until no question is in progress.
func (c *client) pause(t *testing.T) {
	t.Helper()
	c.pauses++
	c.tell(t)
	wantLines(t, c.Process, "paused", c.pauses)
}

// wantMore waits until the client has asked n more questions.
func (c *client) wantMore(t *testing.T, n int) {
	t.Helper()
	wantLines(t, c.Process, "asked", strings.Count(c.Log(), "asked")+n)
}

// wantLines waits until a process has printed a text n times.
func wantLines(t testing.TB, p *netnstest.Process, text string, n int) {
	t.Helper()
	if err := netnstest.Until(startTime, func() error {
		if got := strings.Count(p.Log(), text); got < n {
			return fmt.Errorf("%d times %q, want %d", got, text, n)
		}
		return nil
	}); err != nil {
		log := p.Log()
		t.Fatalf("%v:\n%s", err, log[max(0, len(log)-2000):])
	}
}

// TestStackRestarts: programs continue over plain TCP when the stack of either host ends,
// in order or not, also with peers that announce SMC. They use SMC-R when there is a
// stack again. No question is in progress over SMC-R while a stack ends; at all other
// times questions are asked. SMCR_E2E_ROUNDS is the number of rounds.
func TestStackRestarts(t *testing.T) {
	t.Parallel()
	rounds := 4
	if s := os.Getenv("SMCR_E2E_ROUNDS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, victim := range []string{"server", "client"} {
		t.Run("the "+victim+"'s", func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "nginx", "redis-server", "/usr/bin/python3")
			host := map[string]*netnstest.Host{"server": l.A, "client": l.B}[victim]
			stacks := map[*netnstest.Host]*netnstest.Process{l.A: l.serve(l.A), l.B: l.serve(l.B)}
			dir := t.TempDir()
			nginx, _ := l.nginx(dir, 1)
			if err := os.WriteFile(filepath.Join(dir, "small"), []byte("the answer"), 0o644); err != nil {
				t.Fatal(err)
			}
			redis := l.under(l.A, "redis-server", "--bind", l.A.Addr(), "--port", "6379", "--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", dir)
			if err := l.A.WaitListen(6379, startTime); err != nil {
				t.Fatal(err, redis.Log())
			}
			python := l.under(l.A, "/usr/bin/python3", "-u", "-c", greeter, l.A.Addr())
			if err := python.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			smc := l.asker(bin("smcr"), "run", "--mode", "user", "-v", "--")
			plain := l.asker("env")
			smc.wantMore(t, 3)
			l.wantAllSMC()
			for n := 1; n <= rounds; n++ {
				sig := []os.Signal{unix.SIGTERM, unix.SIGKILL}[n%2]
				smc.pause(t)
				if err := stacks[host].Signal(sig); err != nil {
					t.Fatal(err)
				}
				<-stacks[host].Done() // what begins before that may be reset: TestRestarts
				smc.tell(t)
				smc.wantMore(t, 5)
				stacks[host] = l.serve(host)
				smc.wantMore(t, 5)
				l.wantAllSMC()
				plain.wantMore(t, 1)
				if t.Failed() {
					break
				}
			}
			for name, c := range map[string]*client{"under smcr run": smc, "plain": plain} {
				log := c.Log()
				if n := strings.Count(log, "FAILED"); n > 0 {
					t.Errorf("client %s: %d questions failed, the last: %s", name, n, lastLine(log, "FAILED"))
				}
				t.Logf("client %s: %s times", name, lastLine(log, "asked"))
				c.Kill()
			}
			terminate(t, nginx)
			terminate(t, redis)
		})
	}
}

// wantAllSMC asks each server once and checks that SMC-R is used. A listening socket is
// marked a moment after the stack has started.
func (l *lab) wantAllSMC() {
	l.t.Helper()
	var log string
	err := netnstest.Until(startTime, func() error {
		p := l.under(l.B, "/usr/bin/python3", "-u", "-c", asker, l.A.Addr(), "1")
		err := p.Wait(startTime)
		log = p.Log()
		if err != nil || strings.Contains(log, "FAILED") {
			return netnstest.Stop(fmt.Errorf("%v\n%s", err, log))
		}
		if !strings.Contains(log, "smcr: 3 connections over SMC-R, 0 over TCP") {
			return fmt.Errorf("not all over SMC-R:\n%s", log)
		}
		return nil
	})
	if err != nil {
		l.t.Error(err)
	}
}

// TestOnDemandStackEnds: if a stack that smcr run has started ends, nobody starts another one for the programs that run: they
// are TCP. The next smcr run starts one, which has the programs from before, too.
func TestOnDemandStackEnds(t *testing.T) {
	l := newLab(t, "python3")
	l.serve(l.B)
	server := l.under(l.A, "python3", "-c", answerer, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	if log := l.ask(true); !overSMC(log) {
		t.Errorf("not over SMC-R:\n%s", log)
	}
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		pids := l.stackPids(l.A)
		if len(pids) != 1 {
			t.Fatalf("stack processes %v, want one", pids)
		}
		if err := unix.Kill(pids[0], sig); err != nil {
			t.Fatal(err)
		}
		if err := netnstest.Until(endTime, func() error {
			if now := l.stackPids(l.A); len(now) > 0 {
				return fmt.Errorf("stack processes %v", now)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		l.ask(false) // a connection with SMC would make the peer believe for a minute that nobody here speaks it
		l.wantWorks()
		if now := l.stackPids(l.A); len(now) != 1 || now[0] == pids[0] {
			t.Errorf("stack processes %v after %v, want another one", now, pids)
		}
		if log := l.ask(true); !overSMC(log) {
			t.Errorf("after %v, a program from before is not over SMC-R:\n%s", sig, log)
		}
	}
	server.Kill()
}

// answerer is a server that answers each line with what it has read.
const answerer = `
import socket, sys
l = socket.create_server((sys.argv[1], 7))
print('listening', flush=True)
while True:
    c, _ = l.accept()
    c.sendall(b'got ' + c.recv(4096)); c.close()
`
