// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// message is the size of the message that a client sends on each connection and gets
// back.
const message = 1024

func main() {
	// The program ends even if the test that started it was killed.
	time.AfterFunc(5*time.Minute, func() { fatal(errors.New("five minutes are over")) })
	args := os.Args[1:]
	switch {
	case (len(args) == 2 || len(args) == 3) && args[0] == "server":
		fatal(server(addresses(args[1], args[2:])))
	case (len(args) == 3 || len(args) == 4) && args[0] == "client":
		n, err := strconv.Atoi(args[2])
		if err != nil {
			fatal(err)
		}
		if busy := len(args) == 4 && args[3] == "-busy"; busy {
			fatal(client(args[1:2], n, true))
		}
		fatal(client(addresses(args[1], args[3:]), n, false))
	case len(args) == 3 && args[0] == "halfclose":
		n, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			fatal(err)
		}
		fatal(halfClose(args[1], n))
	case len(args) == 2 && args[0] == "abort":
		fatal(abort(args[1]))
	case len(args) == 2 && args[0] == "rights":
		fatal(rights(args[1]))
	default:
		fmt.Fprintln(os.Stderr, "usage: probe server ADDRESS [PORTS] | probe client ADDRESS CONNECTIONS [-busy | PORTS] | probe halfclose ADDRESS BYTES | probe abort ADDRESS | probe rights ADDRESS")
		os.Exit(2)
	}
}

// addresses returns addr with as many ports as the argument says, from its own on.
func addresses(addr string, ports []string) (all []string) {
	if len(ports) == 0 {
		return []string{addr}
	}
	n, err := strconv.Atoi(ports[0])
	if err != nil {
		fatal(err)
	}
	first, err := netip.ParseAddrPort(addr)
	if err != nil {
		fatal(err)
	}
	for i := range n {
		all = append(all, netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)).String())
	}
	return all
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ending describes how a connection ended.
func ending(err error) string {
	var ne net.Error
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return "EOF"
	case errors.Is(err, net.ErrClosed):
		return "closed here"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.EPIPE):
		return "broken pipe"
	case errors.As(err, &ne) && ne.Timeout():
		return "timeout"
	}
	return err.Error()
}

// server sends back what it receives, until SIGTERM.
func server(addrs []string) error {
	var (
		wg        sync.WaitGroup
		listeners []net.Listener
		conns     sync.Map
	)
	for _, addr := range addrs {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		listeners = append(listeners, ln)
	}
	fmt.Println("listening")
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-term
		for _, ln := range listeners {
			ln.Close()
		}
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
	}()
	for _, ln := range listeners {
		wg.Go(func() {
			for {
				c, err := ln.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					fatal(err)
				}
				conns.Store(c, nil)
				wg.Go(func() {
					defer conns.Delete(c)
					defer c.Close()
					echo(c)
				})
			}
		})
	}
	wg.Wait()
	fmt.Println("closed")
	return nil
}

// echo sends back what it receives, and prints how the connection has ended.
func echo(c net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err == nil {
			_, err = c.Write(buf[:n])
		}
		if err != nil {
			fmt.Printf("connection ended: %s\n", ending(err))
			return
		}
	}
}

// client opens n connections at the same time and exchanges a message on each. Then it
// holds them until each has ended or SIGTERM arrives. With busy, it exchanges messages
// meanwhile.
func client(addrs []string, n int, busy bool) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	var (
		wg     sync.WaitGroup
		failed atomic.Int64
		conns  = make([]net.Conn, n)
	)
	for i := range conns {
		wg.Go(func() {
			c, err := net.DialTimeout("tcp", addrs[i%len(addrs)], 30*time.Second)
			if err == nil {
				conns[i] = c
				err = exchange(c, byte(i))
			}
			if err != nil {
				failed.Add(1)
				fmt.Printf("connection %d failed: %v\n", i, err)
			}
		})
	}
	wg.Wait()
	fmt.Printf("holding %d connections\n", n-int(failed.Load()))

	for i, c := range conns {
		if c == nil {
			continue
		}
		wg.Go(func() {
			fmt.Printf("connection %d ended: %s\n", i, ending(hold(c, busy)))
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-term:
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	case <-ended:
	}
	<-ended
	fmt.Println("closed")
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d connections failed", failed.Load(), n)
	}
	return nil
}

// exchange sends a message of bytes b and checks its echo.
func exchange(c net.Conn, b byte) error {
	want := bytes.Repeat([]byte{b}, message)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.Write(want); err != nil {
		return err
	}
	got := make([]byte, message)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("the echo differs")
	}
	return c.SetDeadline(time.Time{})
}

// hold waits for the end of the connection and returns the reason.
func hold(c net.Conn, busy bool) error {
	for busy {
		if err := exchange(c, 'x'); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// halfClose sends n bytes and ends its direction. It checks that all bytes come back, and
// then the end of the stream.
func halfClose(addr string, n int64) error {
	d, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		return err
	}
	defer d.Close()
	c := d.(*net.TCPConn)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	sent, got := sha256.New(), sha256.New()
	errc := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, io.TeeReader(rand.NewChaCha8([32]byte{2}), sent), n)
		errc <- errors.Join(err, c.CloseWrite())
	}()
	back, err := io.Copy(got, c)
	if err := errors.Join(<-errc, err); err != nil {
		return err
	}
	if back != n || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		return fmt.Errorf("%d bytes came back of %d, or others", back, n)
	}
	fmt.Println("all came back")
	return nil
}

// abort exchanges a message and closes with a reset.
func abort(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		return err
	}
	if err := exchange(c, 'a'); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return c.Close()
}
