// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"smcr/userstack"
)

// The first byte on a connection says what the server is to do with it.
const (
	opSink = 's' // read to the end, then answer the number of bytes
	opLent = 'l' // likewise, without copies if it is SMC-R
	opEcho = 'e' // answer each byte with itself
)

// profiled writes a CPU profile of f if one is wanted.
func (o *options) profiled(smc bool, f func() error) (err error) {
	if !smc || o.profile == "" {
		return f()
	}
	out, err := os.Create(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

func (o *options) stack() (*userstack.Stack, error) {
	return userstack.New(userstack.Config{NoEngine: o.noEngine, Spin: o.spin})
}

func (o *options) serve(ctx context.Context, smc bool, addr string) error {
	l, stack, err := o.listen(ctx, smc, addr)
	if err != nil {
		return err
	}
	if stack != nil {
		defer stack.Close() //nolint:errcheck // the process ends
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	fmt.Println("listening")
	return o.profiled(smc, func() error {
		for {
			c, err := l.Accept()
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			go func() {
				defer c.Close()
				if err := answer(c); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "apibench: server:", err)
				}
			}()
		}
	})
}

func (o *options) listen(ctx context.Context, smc bool, addr string) (net.Listener, *userstack.Stack, error) {
	if !smc {
		l, err := net.Listen("tcp", addr)
		return l, nil, err
	}
	stack, err := o.stack()
	if err != nil {
		return nil, nil, err
	}
	l, err := (&userstack.ListenConfig{Stack: stack, RequireSMC: true}).Listen(ctx, "tcp", addr)
	return l, stack, err
}

func answer(c net.Conn) error {
	var op [1]byte
	if _, err := io.ReadFull(c, op[:]); err != nil {
		return err
	}
	smc, _ := userstack.AsConn(c)
	switch {
	case op[0] == opEcho:
		var b [1]byte
		for {
			if _, err := c.Read(b[:]); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := c.Write(b[:]); err != nil {
				return err
			}
		}
	case op[0] == opLent && smc != nil:
		return counted(c, func() (int, error) { return skim(smc) })
	}
	buf := make([]byte, 128<<10)
	return counted(c, func() (int, error) { return c.Read(buf) })
}

// counted calls read until the end and answers how much it was.
func counted(c net.Conn, read func() (int, error)) error {
	var total int64
	for {
		n, err := read()
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(total)))
	return err
}

func (o *options) client(ctx context.Context, smc bool, addr, what string) (err error) {
	var c net.Conn
	if smc {
		stack, err := o.stack()
		if err != nil {
			return err
		}
		defer stack.Close() //nolint:errcheck // the process ends
		c, err = (&userstack.Dialer{Stack: stack, RequireSMC: true}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
	} else if c, err = net.Dial("tcp", addr); err != nil {
		return err
	}
	defer c.Close()
	return o.profiled(smc, func() error {
		switch what {
		case "write":
			return o.write(c, opSink, c.Write)
		case "lent":
			write := c.Write
			if s, ok := userstack.AsConn(c); ok {
				write = func(p []byte) (int, error) { return fill(s, len(p)) }
			}
			return o.write(c, opLent, write)
		case "roundtrip":
			return o.roundTrip(c)
		}
		return fmt.Errorf("no measurement %q", what)
	})
}

// write prints the MiB/s that the server has read.
func (o *options) write(c net.Conn, op byte, write func([]byte) (int, error)) error {
	if _, err := c.Write([]byte{op}); err != nil {
		return err
	}
	buf := make([]byte, o.block)
	var sent int64
	start := time.Now()
	for time.Since(start) < o.time {
		n, err := write(buf)
		sent += int64(n)
		if err != nil {
			return err
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	var count [8]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return err
	}
	if got := int64(binary.BigEndian.Uint64(count[:])); got != sent {
		return fmt.Errorf("the server received %d bytes of %d", got, sent)
	}
	fmt.Printf("%.1f\n", float64(sent)/(1<<20)/time.Since(start).Seconds())
	return nil
}

// roundTrip prints the µs of an exchange of one byte.
func (o *options) roundTrip(c net.Conn) error {
	b := [1]byte{opEcho}
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	n, start := 0, time.Now()
	for ; time.Since(start) < o.time; n++ {
		if _, err := c.Write(b[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return err
		}
	}
	fmt.Printf("%.2f\n", time.Since(start).Seconds()*1e6/float64(n))
	return nil
}

// skim reads without a copy: it looks at one byte in 64, as a program that works on
// the data would touch them.
func skim(c *userstack.Conn) (int, error) {
	a, b, err := c.Peek(1)
	if err != nil {
		return 0, err
	}
	var sum byte
	for _, p := range [][]byte{a, b} {
		for i := 0; i < len(p); i += 64 {
			sum += p[i]
		}
	}
	runtime.KeepAlive(sum)
	return c.Discard(len(a) + len(b))
}

// fill writes n bytes without a copy.
func fill(c *userstack.Conn, n int) (int, error) {
	sent := 0
	for sent < n {
		a, b, err := c.Reserve(1)
		if err != nil {
			return sent, err
		}
		m := min(n-sent, len(a)+len(b))
		for _, p := range [][]byte{a[:min(m, len(a))], b[:max(0, m-len(a))]} {
			for i := 0; i < len(p); i += 64 {
				p[i] = byte(i)
			}
		}
		if err := c.Commit(m); err != nil {
			return sent, err
		}
		sent += m
	}
	return sent, nil
}
