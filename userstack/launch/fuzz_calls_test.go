// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/internal/testing/socktest"
)

// callsProgram is a launched program (probeCalls) that makes the calls of the fuzzer. One
// program serves many inputs, because its start takes much longer than an input.
type callsProgram struct {
	*lateTB
	in     *os.File
	out    *bufio.Reader
	outEnd *os.File
	cancel context.CancelFunc
	ended  chan error
}

// lateTB stands for a test that may be over: it keeps what fails, and what is to be cleaned
// up.
type lateTB struct {
	testing.TB
	mu    sync.Mutex
	wrong []string
	after []func()
}

func (l *lateTB) Helper()      {}
func (l *lateTB) Name() string { return "calls" }

func (l *lateTB) Cleanup(f func()) { l.after = append(l.after, f) }

func (l *lateTB) Errorf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *lateTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Write makes an error of what the launcher logs.
func (l *lateTB) Write(b []byte) (int, error) {
	l.Errorf("the launcher logs: %s", b)
	return len(b), nil
}

// startCalls starts a program. how chooses what the stack answers.
func startCalls(how byte, addrs []string) (*callsProgram, error) {
	p := &callsProgram{lateTB: &lateTB{}, ended: make(chan error, 1)}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	inr, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, outw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out, p.outEnd = in, bufio.NewReader(out), out
	stack := &fakeStack{t: p, byOption: how&1 != 0, noPeer: how&2 != 0}
	if how&4 != 0 {
		stack.decline = "test"
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	cfg := Config{
		Argv: append([]string{exe}, addrs...), Env: append(os.Environ(), probeEnv+"=calls", quietRuntime), Broker: stack.client(), NoAdapt: how&8 != 0,
		Stdin: inr, Stdout: outw, Stderr: outw, Log: slog.New(slog.NewTextHandler(p, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	go func() {
		_, _, err := Run(ctx, apart(cfg))
		_ = inr.Close()
		_ = outw.Close()
		p.ended <- err
	}()
	return p, nil
}

// begin has the program make calls. What becomes of them comes from the channel: what went
// wrong, or nil. A call hangs if the program has not answered after patience.
func (p *callsProgram) begin(calls []byte) <-chan error {
	done := make(chan error, 1)
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(calls))), calls...)
	go func() { done <- p.made(frame) }()
	return done
}

// made waits until the program has made the calls of a frame.
func (p *callsProgram) made(frame []byte) error {
	if _, err := p.in.Write(frame); err != nil {
		return err
	}
	if err := p.outEnd.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := p.out.ReadString('\n')
	switch {
	case err != nil:
		return fmt.Errorf("no answer: %w", err)
	case line != "ok\n":
		rest, _ := p.out.Peek(p.out.Buffered())
		return fmt.Errorf("%s%s", line, rest)
	}
	return p.complaint()
}

// inputTime is how long the fuzzer waits for an input. Go's fuzzer ends its worker, as if it
// hung, after 10 seconds for one input. On a busy machine, the start of a program alone may
// take longer.
const inputTime = 5 * time.Second

// callsPrograms are the programs of a fuzzer, by what the stack answers to them.
type callsPrograms struct {
	addrs []string
	now   [8]*callsProgram
	late  []lateCalls
}

// lateCalls are calls that were not over after inputTime.
type lateCalls struct {
	*callsProgram
	calls []byte
	done  <-chan error
}

// run has a program make calls. If they take longer than inputTime, a later call of run, or
// end, returns what went wrong with them. how chooses what the stack answers.
func (x *callsPrograms) run(how byte, calls []byte) error {
	for i, l := range x.late {
		select {
		case err := <-l.done:
			x.late = append(x.late[:i], x.late[i+1:]...)
			return l.over(err)
		default:
		}
	}
	p := x.now[how]
	if p == nil {
		var err error
		if p, err = startCalls(how, x.addrs); err != nil {
			return err
		}
		x.now[how] = p
	}
	done := p.begin(calls)
	timer := time.NewTimer(inputTime)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		x.now[how] = nil
		x.late = append(x.late, lateCalls{p, bytes.Clone(calls), done})
		return nil
	}
}

// over ends the program of late calls, whose result is err.
func (l *lateCalls) over(err error) error {
	if err = errors.Join(err, l.end()); err != nil {
		return fmt.Errorf("the earlier calls %q: %w", l.calls, err)
	}
	return nil
}

// end ends all programs.
func (x *callsPrograms) end() (err error) {
	for _, l := range x.late {
		err = errors.Join(err, l.over(<-l.done))
	}
	for _, p := range x.now {
		if p != nil {
			err = errors.Join(err, p.end())
		}
	}
	return err
}

// complaint returns what a part of the launcher or the stack has found wrong.
func (p *callsProgram) complaint() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(p.wrong, "\n"))
	}
	return nil
}

// end ends the program.
func (p *callsProgram) end() error {
	defer p.cancel()
	_ = p.in.Close()
	select {
	case err := <-p.ended:
		if err != nil {
			return err
		}
	case <-time.After(patience):
		return errors.New("the launcher does not end")
	}
	_ = p.outEnd.Close()
	for _, f := range p.after {
		f()
	}
	return p.complaint()
}

// echoForEver answers on an address until the process ends.
func echoForEver(network, addr string) (string, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		return "", err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				for {
					_ = c.SetDeadline(time.Now().Add(20 * time.Second))
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), nil
}

// FuzzCalls has a program make the calls that the launcher answers, on any descriptor and
// with any address, while another thread of the program changes the memory, the descriptor
// and the length, or sends signals. Each call must end. The launcher must not panic, must
// not write to other memory than the call names, and must have no descriptor left when the
// program has ended.
func FuzzCalls(f *testing.F) {
	v4, err := echoForEver("tcp4", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	v6, err := echoForEver("tcp6", "[::1]:0")
	if err != nil {
		v6 = "[::1]:2"
	}
	for seed := range byte(40) {
		r := rand.NewChaCha8([32]byte{seed})
		b := make([]byte, 1+8*fuzzCallLen)
		_, _ = r.Read(b)
		f.Add(b)
	}
	// What a first connection opens for the process stays open.
	first, err := startCalls(0, []string{v4, v6})
	if err != nil {
		f.Fatal(err)
	}
	if err := <-first.begin([]byte{0, 0, 0, 0, 0, 16, 0, 5, 0, 0}); err != nil {
		f.Fatal(err)
	}
	if err := first.end(); err != nil {
		f.Fatal(err)
	}
	programs := &callsPrograms{addrs: []string{v4, v6}}
	before := socktest.OpenFiles(f)
	f.Cleanup(func() {
		if err := programs.end(); err != nil {
			f.Error(err)
		}
		for end := time.Now().Add(patience); socktest.OpenFiles(f) > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				f.Fatalf("%d descriptors are open, %d were before the programs started", socktest.OpenFiles(f), before)
			}
		}
	})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		if err := programs.run(in[0]%8, in[1:min(len(in), 1+8*fuzzCallLen)]); err != nil {
			t.Fatal(err)
		}
	})
}
