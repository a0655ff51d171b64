// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/blocking"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// options are the options of all commands.
type options struct {
	addr     netip.AddrPort
	smc      bool
	n        int
	parallel bool
	size     int
	hold     bool
	after    string
	check    bool
	tell     bool
	dir      string
	limit    time.Duration
	steps    []string
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: peer serve|echo|reset|accept|connect [options] ADDRESS:PORT [step ...]")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.BoolVar(&o.smc, "smc", false, "AF_SMC sockets")
	flags.IntVar(&o.n, "n", 1, "`number` of connections")
	flags.BoolVar(&o.parallel, "parallel", false, "all connections side by side")
	flags.IntVar(&o.size, "bytes", 100000, "`bytes` to send over each connection")
	flags.BoolVar(&o.check, "check", false, "serve: compare with what echo sends")
	flags.BoolVar(&o.tell, "tell", false, "echo: write what became of each connection")
	flags.BoolVar(&o.hold, "hold", false, "keep the connections until killed")
	flags.StringVar(&o.after, "after", "", "serve, accept: the first accept is when this `file` is there")
	flags.StringVar(&o.dir, "dir", "", "`directory` of the files of steps")
	flags.DurationVar(&o.limit, "limit", 45*time.Second, "`time` that a step may stand still")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var err error
	if o.addr, err = netip.ParseAddrPort(flags.Arg(0)); err != nil {
		return err
	}
	if flags.NArg() > 1 {
		o.steps = flags.Args()[1:]
	}
	switch args[0] {
	case "accept":
		return o.accept()
	case "connect":
		return o.each(o.script)
	case "serve":
		return o.serve()
	case "echo":
		return o.each(o.echo)
	case "reset":
		return o.each(o.reset)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// protocol returns the protocol of the sockets.
func (o *options) protocol() blocking.Protocol {
	if o.smc {
		return blocking.SMC
	}
	return blocking.TCP
}

// listen returns a socket that listens, and prints a message before the first accept.
func (o *options) listen() (blocking.Conn, error) {
	l, err := blocking.Listen(o.protocol(), o.addr, 256)
	if err == nil {
		fmt.Println("listening")
		for o.after != "" {
			if _, err := os.Stat(o.after); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return l, err
}

// accept runs the script on the first connection.
func (o *options) accept() error {
	l, err := o.listen()
	if err != nil {
		return err
	}
	c, err := l.Accept()
	if err = errors.Join(err, l.Close()); err != nil {
		return err
	}
	return o.script(c, 0)
}

func (o *options) script(c blocking.Conn, _ int) error {
	return (&script{c: c, dir: o.dir, limit: o.limit}).run(o.steps)
}

func (o *options) serve() error {
	l, err := o.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			// io.Copy would not show how the connection ended.
			buf := make([]byte, 64<<10)
			for pos, first := 0, 0; ; {
				n, err := c.Read(buf)
				for _, b := range buf[:max(n, 0)] {
					if pos == 0 {
						first = int(b)
					}
					if o.check && b != echoByte(first, pos) {
						fmt.Printf("wrong byte %d on connection %d\n", pos, first)
						return
					}
					pos++
				}
				if err == nil {
					_, err = c.Write(buf[:n])
				}
				switch {
				case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNABORTED):
					fmt.Println("reset")
					return
				case err == io.EOF:
					return
				case err != nil:
					fmt.Println("failed:", err)
					return
				}
			}
		}()
	}
}

// connecting is the number of connections that are made at the same time. Linux waits 6 s
// in a rendezvous, and an emulated CPU needs this time for a few dozen.
const connecting = 5

// each makes the connections and passes them to use with their numbers, all at the same
// time when all exist.
func (o *options) each(use func(c blocking.Conn, i int) error) error {
	var slowest atomic.Int64
	stood := watchMachine()
	begin := time.Now()
	// connect makes a connection. Unless it fails, done must be called with the result of
	// the connection.
	connect := func(i int) (c blocking.Conn, done func(error), err error) {
		before, begin := stood(), time.Now()
		if c, err = blocking.Dial(o.protocol(), o.addr); err != nil {
			o.report(i, "no connect", time.Since(begin), err)
			return c, nil, err
		}
		took := time.Since(begin)
		if took > time.Second {
			time.Sleep(2 * machineTick) // it is reported at the next tick
			took -= stood() - before
		}
		for {
			if old := slowest.Load(); int64(took) <= old || slowest.CompareAndSwap(old, int64(took)) {
				break
			}
		}
		return c, func(err error) {
			o.report(i, fmt.Sprintf("connect %v, end", took.Round(time.Millisecond)), time.Since(begin), err)
		}, nil
	}
	errs := make([]error, o.n)
	if o.parallel {
		turns := make(chan struct{}, connecting)
		var connects, wg sync.WaitGroup
		connects.Add(o.n)
		for i := range o.n {
			wg.Go(func() {
				turns <- struct{}{}
				c, done, err := connect(i)
				<-turns
				connects.Done()
				if errs[i] = err; err != nil {
					return
				}
				connects.Wait()
				errs[i] = use(c, i)
				done(errs[i])
			})
		}
		wg.Wait()
	} else {
		for i := range o.n {
			c, done, err := connect(i)
			if errs[i] = err; err == nil {
				errs[i] = use(c, i)
				done(errs[i])
			}
			if errs[i] != nil && !o.tell {
				break
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d connections done in %v, slowest connect %v (the machine stood still for %v)\n", o.n,
		time.Since(begin).Round(time.Millisecond), time.Duration(slowest.Load()).Round(time.Millisecond), stood().Round(time.Millisecond))
	if o.hold {
		return unix.Pause()
	}
	return nil
}

// machineTick is the interval of watchMachine.
const machineTick = 20 * time.Millisecond

// watchMachine returns a function. This function returns how long in all the machine did
// not run this program although it was ready: if the host of a guest is busy, this can be
// seconds, for which a connect is not responsible. Less than some ticks is normal in the
// guest.
func watchMachine() func() time.Duration {
	var stood atomic.Int64
	go func() {
		for {
			begin := time.Now()
			time.Sleep(machineTick)
			if over := time.Since(begin) - machineTick; over > 5*machineTick {
				stood.Add(int64(over))
			}
		}
	}()
	return func() time.Duration { return time.Duration(stood.Load()) }
}

// report prints the result of a connection, and the time since its begin.
func (o *options) report(i int, what string, after time.Duration, err error) {
	if !o.tell {
		return
	}
	outcome := "right"
	if err != nil {
		outcome = strings.TrimPrefix(err.Error(), fmt.Sprintf("connection %d: ", i))
	}
	fmt.Printf("connection %d: %s after %v: %s\n", i, what, after.Round(time.Millisecond), outcome)
}

// echoByte is byte j of the data on connection i.
func echoByte(i, j int) byte { return pattern(j) ^ byte(i) }

// echo sends while it reads the echo, and then ends its direction. The rest of the echo
// must arrive before the end of the other direction. Then echo closes the connection,
// unless it must be held.
func (o *options) echo(c blocking.Conn, i int) error {
	data := make([]byte, o.size)
	for j := range data {
		data[j] = echoByte(i, j)
	}
	want := sha256.Sum256(data)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil && !o.hold {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	got := make([]byte, o.size)
	if n, err := io.ReadFull(c, got); err != nil {
		if wrong := differences(got[:n], data[:n]); wrong != "" {
			err = fmt.Errorf("%w; wrong before that: %s", err, wrong)
		}
		return fmt.Errorf("connection %d: %w after %d bytes", i, err, n)
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	if sha256.Sum256(got) != want {
		return fmt.Errorf("connection %d: the echo of %d bytes differs: %s", i, o.size, differences(got, data))
	}
	if o.hold {
		return nil
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("connection %d: %d bytes (%v) behind the end", i, n, err)
	}
	return c.Close()
}

// differences describes which bytes are wrong. If these bytes belong to another position
// in the stream, a multiple of 4 KiB away, it says to which.
func differences(got, want []byte) string {
	const window, step, most = 64, 4096, 8
	var list []string
	for from := 0; from < len(want); from++ {
		if got[from] == want[from] {
			continue
		}
		// Some bytes in a wrong range can be right by chance.
		to := from + 1
		for last := from; to < len(want) && to-last < window; to++ {
			if got[to] != want[to] {
				last = to
			}
		}
		for to > from+1 && got[to-1] == want[to-1] {
			to--
		}
		text := fmt.Sprintf("%d bytes from %d on", to-from, from)
		for d := step; to-from >= window && d < len(want); d += step {
			if from+d+window <= len(want) && bytes.Equal(got[from:from+window], want[from+d:from+d+window]) {
				text += fmt.Sprintf(" are those of %d later", d)
				break
			}
			if from >= d && bytes.Equal(got[from:from+window], want[from-d:from-d+window]) {
				text += fmt.Sprintf(" are those of %d earlier", d)
				break
			}
		}
		if list = append(list, text); len(list) == most {
			list = append(list, "and more")
			break
		}
		from = to
	}
	return strings.Join(list, ", ")
}

// reset closes before the echo is read.
func (o *options) reset(c blocking.Conn, i int) error {
	if _, err := c.Write(make([]byte, o.size)); err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	// Wait for the first bytes of the echo.
	p := []unix.PollFd{{Fd: int32(c), Events: unix.POLLIN}}
	if _, err := unix.Poll(p, 5000); err != nil && err != unix.EINTR {
		return os.NewSyscallError("poll", err)
	}
	return c.Close()
}
