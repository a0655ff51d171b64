// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// requestSize is the size of a request, and of its answer, in bytes.
	requestSize = 64
	// dialers is the number of connections that are made at the same time.
	dialers = 16
)

// many executes commands with a growing number of connections.
func (n network) many(address string, commands io.Reader, out io.Writer) (err error) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			err = errors.Join(err, c.Close())
		}
	}()
	for lines := bufio.NewScanner(commands); lines.Scan(); {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "open":
			number, limit, _ := strings.Cut(arg, " ")
			want, err := strconv.Atoi(number)
			if err != nil {
				return err
			}
			d, err := time.ParseDuration(limit)
			if err != nil {
				return err
			}
			more, err := n.openAll(address, want-len(conns), d)
			conns = append(conns, more...)
			if err != nil {
				return err
			}
			if err := n.free(address); err != nil {
				return err
			}
			fmt.Fprintln(out, "open", len(conns))
		case "run":
			d, err := time.ParseDuration(arg)
			if err != nil {
				return err
			}
			count, took, err := requests(conns, d)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "ran %d %.6f\n", count, took.Seconds())
		default:
			return errUsage
		}
	}
	return nil
}

// openAll makes this number of connections, several at a time, and uses each once. When
// the time d has passed, it returns those that it has made.
func (n network) openAll(address string, count int, d time.Duration) ([]net.Conn, error) {
	var (
		wg    sync.WaitGroup
		next  atomic.Int64
		mu    sync.Mutex
		conns []net.Conn
		fail  error
	)
	start := time.Now()
	for range min(dialers, count) {
		wg.Go(func() {
			message, back := pattern(requestSize), make([]byte, requestSize)
			for next.Add(1) <= int64(count) && time.Since(start) < d {
				c, err := n.open(address, opEcho, requestSize)
				if err == nil {
					err = exchange(c, message, back)
				}
				mu.Lock()
				if c != nil {
					conns = append(conns, c)
				}
				fail = errors.Join(fail, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return conns, fail
}

// free makes both programs return unused memory to the system, so that the connections
// are measured and nothing else.
func (n network) free(address string) error {
	c, err := n.open(address, opFree, 1)
	if err != nil {
		return err
	}
	defer c.Close()
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	debug.FreeOSMemory()
	return nil
}

// requests sends requests on all connections for the time d, at least one on each. It
// returns the number of answered requests.
func requests(conns []net.Conn, d time.Duration) (int64, time.Duration, error) {
	var (
		wg    sync.WaitGroup
		count atomic.Int64
		mu    sync.Mutex
		fail  error
	)
	start := time.Now()
	for _, c := range conns {
		wg.Go(func() {
			message, back := pattern(requestSize), make([]byte, requestSize)
			for first := true; first || time.Since(start) < d; first = false {
				if err := exchange(c, message, back); err != nil {
					mu.Lock()
					fail = errors.Join(fail, err)
					mu.Unlock()
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return count.Load(), time.Since(start), fail
}
