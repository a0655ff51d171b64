// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// block is the size of one write of the throughput measurement.
const block = 1 << 20

// The first byte on a connection says what the server is to do with it.
const (
	opSink = 's' // read to the end, then answer the number of bytes
	opEcho = 'e' // answer each byte with itself
)

// maxEcho is how many bytes hold sends before it reads any: no more than a
// socket takes.
const maxEcho = 64 << 10

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "server":
		return serve(args[1])
	case (len(args) == 4 || len(args) == 5) && args[0] == "client" && args[2] == "hold":
		n, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		size := 1
		if len(args) == 5 {
			if size, err = strconv.Atoi(args[4]); err != nil || size < 1 || size > maxEcho {
				return fmt.Errorf("not 1 to %d bytes: %s", maxEcho, args[4])
			}
		}
		return hold(args[1], n, size)
	case len(args) == 4 && args[0] == "client":
		d, err := time.ParseDuration(args[3])
		if err != nil {
			return err
		}
		measure, ok := map[string]func(string, time.Duration) (int64, error){
			"write": write, "roundtrip": roundTrip, "connect": connect,
		}[args[2]]
		if !ok {
			return fmt.Errorf("no measurement %q", args[2])
		}
		start := time.Now()
		n, err := measure(args[1], d)
		if err != nil {
			return err
		}
		fmt.Printf("%d %.6f\n", n, time.Since(start).Seconds())
		return nil
	}
	return errors.New("usage: load server ADDRESS | load client ADDRESS write|roundtrip|connect DURATION | load client ADDRESS hold CONNECTIONS [BYTES]")
}

func serve(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := answer(c); err != nil {
				fmt.Fprintln(os.Stderr, "load: server:", err)
			}
		}()
	}
}

func answer(c net.Conn) error {
	var op [1]byte
	if _, err := io.ReadFull(c, op[:]); err != nil {
		return err
	}
	switch op[0] {
	case opSink:
		var total int64
		buf := make([]byte, block)
		for {
			n, err := c.Read(buf)
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
	case opEcho:
		var b [512]byte
		for {
			n, err := c.Read(b[:])
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := c.Write(b[:n]); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("unknown request %q", op[0])
}

func dial(addr string, op byte) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{op}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.(*net.TCPConn), nil
}

// write writes blocks for the time d and returns the number of bytes that the
// server has read.
func write(addr string, d time.Duration) (int64, error) {
	c, err := dial(addr, opSink)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buf := make([]byte, block)
	var sent int64
	for end := time.Now().Add(d); time.Now().Before(end); {
		n, err := c.Write(buf)
		sent += int64(n)
		if err != nil {
			return 0, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var count [8]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return 0, err
	}
	if got := int64(binary.BigEndian.Uint64(count[:])); got != sent {
		return 0, fmt.Errorf("the server received %d bytes of %d", got, sent)
	}
	return sent, nil
}

// exchange sends one byte and waits for its echo.
func exchange(c net.Conn) error { return exchangeBytes(c, []byte{'x'}) }

func exchangeBytes(c net.Conn, b []byte) error {
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// roundTrip returns the number of exchanges of one byte during the time d.
func roundTrip(addr string, d time.Duration) (int64, error) {
	c, err := dial(addr, opEcho)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var n int64
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		if err := exchange(c); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// connect returns the number of connections made one after the other during
// the time d, with one exchange on each.
func connect(addr string, d time.Duration) (int64, error) {
	var n int64
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		c, err := dial(addr, opEcho)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(exchange(c), c.Close()); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// hold keeps n connections open, each used once for size bytes each way, until
// SIGTERM.
func hold(addr string, n, size int) error {
	b := make([]byte, size)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	for range n {
		c, err := dial(addr, opEcho)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := exchangeBytes(c, b); err != nil {
			return err
		}
	}
	fmt.Println("holding")
	<-term
	return nil
}
