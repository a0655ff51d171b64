// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "checked:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "server" {
		return serve(args[1])
	}
	if len(args) < 2 || args[0] != "client" {
		return errors.New("usage: checked server ADDRESS | checked client ADDRESS [FLAG...]")
	}
	flags := flag.NewFlagSet("checked", flag.ContinueOnError)
	conns := flags.Int("conns", 1, "connections at the same time")
	bytes := flags.Uint64("bytes", 1<<20, "bytes in each direction")
	length := flags.Duration("for", 0, "send for this time")
	pause := flags.Duration("pause", 0, "pause after each block")
	limit := flags.Duration("limit", 15*time.Second, "longest time without progress")
	if err := flags.Parse(args[2:]); err != nil {
		return err
	}
	var running sync.WaitGroup
	for range *conns {
		running.Go(func() {
			p := plan{Magic: magic, Seed: rand.Uint64(), Bytes: *bytes, For: uint64(*length), Pause: uint64(*pause), Limit: uint64(*limit)}
			begin := time.Now()
			r := p.dial(args[1])
			r.Seconds = time.Since(begin).Seconds()
			report(r)
		})
	}
	running.Wait()
	return nil
}

// dial makes a connection and uses it.
func (p plan) dial(address string) Result {
	r := Result{Seed: p.Seed}
	c, err := net.DialTimeout("tcp", address, time.Duration(p.Limit))
	if err == nil {
		defer c.Close()
		err = binary.Write(c, binary.BigEndian, p)
	}
	if err != nil {
		r.fail(err)
		return r
	}
	return p.exchange(c.(*net.TCPConn), true)
}

func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	say("listening")
	for {
		c, err := l.Accept()
		if exhausted(err) {
			fmt.Fprintln(os.Stderr, "checked:", err)
			time.Sleep(acceptAgain)
			continue
		}
		if err != nil {
			return err
		}
		say("accepted")
		go func() {
			defer c.Close()
			begin := time.Now()
			var p plan
			var r Result
			if err := binary.Read(limited{c, firstTime}, binary.BigEndian, &p); err != nil {
				r.fail(err)
				r.Corrupted = false // the client has not begun
			} else if p.Magic != magic {
				r.fail(fmt.Errorf("%#x at the beginning: %w", p.Magic, errWrong))
			} else {
				r = p.exchange(c.(*net.TCPConn), false)
			}
			r.Seconds = time.Since(begin).Seconds()
			report(r)
		}()
	}
}

// acceptAgain is how long the server waits after accept failed for lack of something.
const acceptAgain = 10 * time.Millisecond

// exhausted reports whether an error of accept says that something is used up. The
// connection is then still in the queue.
func exhausted(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// firstTime is how long the server waits for the plan of a client.
const firstTime = 60 * time.Second

// out keeps lines whole.
var out sync.Mutex

func say(line string) {
	out.Lock()
	defer out.Unlock()
	fmt.Println(line)
}

func report(r Result) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers and strings
	}
	say(string(b))
}
