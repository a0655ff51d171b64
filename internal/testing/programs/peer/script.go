// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/blocking"
)

// pollFiles is how often a step checks for a file that it waits for.
const pollFiles = 2 * time.Millisecond

// fullLooks is how often in a row a step must find no room before the buffers count as
// full: half a second on an idle machine. On a busy machine it takes longer, like the
// program that makes room.
const fullLooks = 250

// A script is a sequence of steps on one connection. Each step prints one line: the step
// and its result. A line never has an address, a time or another value that differs
// between two runs.
//
//	send=N       send N bytes
//	recv=N       receive N bytes and compare them
//	slow=N       the same, in small pieces with pauses
//	drain        receive and compare until the end
//	take=NAME    receive and compare the number of bytes in the file
//	stream       send until that fails
//	sendnb=N     send N bytes without blocking, waiting for POLLOUT
//	eager=NAME   send without blocking until the buffers are full, and write the
//	             number of bytes to the file
//	shut=r|w|rw  shutdown
//	close        close
//	linger0      SO_LINGER with zero
//	error        SO_ERROR
//	poll         the present events
//	inline       SO_OOBINLINE
//	oob=X        send the byte with MSG_OOB
//	pri          wait for POLLPRI
//	recvoob      receive with MSG_OOB
//	mark=OP      SIOCATMARK, when it is OP (1 or 0)
//	byte         receive one byte and print it
//	touch=NAME   make a file in the directory of the script
//	wait=NAME    wait for a file
//	pause=MS     milliseconds
//	kill         SIGKILL to itself
type script struct {
	c       blocking.Conn
	dir     string
	limit   time.Duration
	in, out int // positions in both streams

	moved atomic.Int64 // bytes of both directions
}

// pattern is the byte at position i of each direction of a stream.
func pattern(i int) byte { return byte(i*7) ^ byte(i>>8) ^ byte(i>>16) }

// run runs the steps. The program ends if one stands still for too long.
func (s *script) run(steps []string) error {
	for _, step := range steps {
		name, arg, _ := strings.Cut(step, "=")
		stop := s.watch(step)
		begin := time.Now()
		saw, err := s.step(name, arg)
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
		if saw != "" {
			fmt.Printf("%s: %s\n", step, saw)
		} else {
			fmt.Println(step)
		}
		if d := time.Since(begin); d > 100*time.Millisecond {
			fmt.Fprintf(os.Stderr, "%s took %v\n", step, d.Round(time.Millisecond))
		}
	}
	return nil
}

// watch ends the program if a step stands still for too long, until it is stopped. The connection is
// reset, so that the other side cannot take that for the end of the stream. A socket of the kernel's
// SMC ends in order all the same.
func (s *script) watch(step string) (stop func()) {
	done := make(chan struct{})
	go func() {
		for seen := s.moved.Load(); ; {
			select {
			case <-done:
				return
			case <-time.After(s.limit):
			}
			now := s.moved.Load()
			if now == seen {
				s.hangs(step)
			}
			seen = now
		}
	}()
	return func() { close(done) }
}

// hangs ends the program in the middle of a step.
func (s *script) hangs(step string) {
	fmt.Printf("%s: hangs\n", step)
	fmt.Fprintf(os.Stderr, "%s hangs after %d bytes\n", step, s.moved.Load())
	_ = unix.SetsockoptLinger(int(s.c), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	os.Exit(3)
}

// sent and received take note that bytes were moved.
func (s *script) sent(n int)     { s.out += n; s.moved.Add(int64(n)) }
func (s *script) received(n int) { s.in += n; s.moved.Add(int64(n)) }

// outcome returns the name of a result, or "" for success.
func outcome(err error) string {
	if err == nil {
		return ""
	}
	if err == io.EOF {
		return "EOF"
	}
	if no, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(no)
	}
	return err.Error()
}

func (s *script) step(name, arg string) (string, error) {
	n, _ := strconv.Atoi(arg)
	fd := int(s.c)
	switch name {
	case "send":
		sent, err := s.send(n)
		if err != nil && sent > 0 {
			return fmt.Sprintf("%d, then %s", sent, outcome(err)), nil
		}
		return outcome(err), nil
	case "recv":
		return s.recv(n, 64<<10, 0), nil
	case "slow":
		return s.recv(n, 16<<10, 5*time.Millisecond), nil
	case "drain":
		saw := s.recv(1<<40, 64<<10, 0)
		if _, end, ok := strings.Cut(saw, ", then "); ok {
			saw = end // the number of bytes depends on the timing
		}
		return saw, nil
	case "take":
		b, err := os.ReadFile(filepath.Join(s.dir, arg))
		if err != nil {
			return "", err
		}
		if n, err = strconv.Atoi(string(b)); err != nil {
			return "", err
		}
		return s.recv(n, 64<<10, 0), nil
	case "stream":
		sent, err := s.send(1 << 40)
		if sent == 0 {
			return "nothing sent, " + outcome(err), nil
		}
		return "ends with " + outcome(err), nil
	case "sendnb":
		return outcome(s.sendNonblocking(n)), nil
	case "eager":
		return s.eager(arg)
	case "shut":
		how, ok := map[string]int{"r": unix.SHUT_RD, "w": unix.SHUT_WR, "rw": unix.SHUT_RDWR}[arg]
		if !ok {
			return "", fmt.Errorf("shutdown of %q", arg)
		}
		return outcome(unix.Shutdown(fd, how)), nil
	case "close":
		return outcome(s.c.Close()), nil
	case "linger0":
		return outcome(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})), nil
	case "error":
		no, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && no != 0 {
			return unix.ErrnoName(unix.Errno(no)), nil
		}
		return outcome(err), nil
	case "poll":
		return s.poll(unix.POLLIN|unix.POLLOUT|unix.POLLRDHUP|unix.POLLPRI, 0)
	case "pri":
		return s.poll(unix.POLLPRI, s.limit)
	case "touch":
		return "", os.WriteFile(filepath.Join(s.dir, arg), nil, 0o644)
	case "wait":
		return "", s.wait(arg)
	case "pause":
		time.Sleep(time.Duration(n) * time.Millisecond)
		return "", nil
	case "kill":
		fmt.Println("kill")
		return "", unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	return s.urgent(name, arg)
}

// urgent runs the steps for urgent data.
func (s *script) urgent(name, arg string) (string, error) {
	fd, b := int(s.c), make([]byte, 1)
	switch name {
	case "inline":
		return outcome(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)), nil
	case "oob":
		_, err := unix.SendmsgN(fd, []byte(arg), nil, nil, unix.MSG_OOB|unix.MSG_NOSIGNAL)
		return outcome(err), nil
	case "recvoob":
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_OOB)
		if err != nil || n == 0 {
			return outcome(errors.Join(err, ifZero(n))), nil
		}
		return strconv.Quote(string(b[:n])), nil
	case "byte":
		n, err := unix.Read(fd, b)
		if err != nil || n == 0 {
			return outcome(errors.Join(err, ifZero(n))), nil
		}
		return strconv.Quote(string(b[:n])), nil
	case "mark":
		want, _ := strconv.Atoi(arg)
		for {
			at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
			if err != nil || at == want {
				return outcome(err), nil
			}
			time.Sleep(pollFiles)
		}
	}
	return "", errors.New("unknown step")
}

func ifZero(n int) error {
	if n == 0 {
		return io.EOF
	}
	return nil
}

// send sends n bytes, or until an error, and returns how many it has sent.
func (s *script) send(n int) (sent int, err error) {
	buf := make([]byte, min(n, 64<<10))
	for sent < n {
		part := buf[:min(len(buf), n-sent)]
		for i := range part {
			part[i] = pattern(s.out + i)
		}
		m, err := unix.SendmsgN(int(s.c), part, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return sent, err
		}
		s.sent(m)
		sent += m
	}
	return sent, nil
}

// sendNonblocking sends n bytes. It counts calls that send nothing after POLLOUT: more
// than a few of them are an endless loop.
func (s *script) sendNonblocking(n int) error {
	const most = 1000
	for sent, void := 0, 0; sent < n; {
		p := []unix.PollFd{{Fd: int32(s.c), Events: unix.POLLOUT}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return err
		}
		m, err := unix.SendmsgN(int(s.c), []byte{pattern(s.out)}, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EAGAIN && void == most:
			return fmt.Errorf("poll says that it can send, send that it cannot, %d times", most)
		case err == unix.EAGAIN:
			void++
		case err != nil:
			return err
		default:
			s.sent(m)
			sent += m
		}
	}
	return nil
}

// eager fills the buffers until nothing can be sent for some time.
func (s *script) eager(name string) (string, error) {
	for full := 0; full < fullLooks; {
		b := make([]byte, 4096)
		for i := range b {
			b[i] = pattern(s.out + i)
		}
		n, err := unix.SendmsgN(int(s.c), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			full++
			time.Sleep(pollFiles)
		case err != nil:
			return outcome(err), nil
		default:
			s.sent(n)
			full = 0
		}
	}
	// Other programs must find a complete file.
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(s.out)), 0o644); err != nil {
		return "", err
	}
	return "", os.Rename(file+".new", file)
}

// recv receives n bytes, or fewer at the end of the stream.
func (s *script) recv(n, piece int, pause time.Duration) string {
	buf := make([]byte, piece)
	got := 0
	for got < n {
		m, err := s.c.Read(buf[:min(len(buf), n-got)])
		for i := range m {
			if buf[i] != pattern(s.in+i) {
				return fmt.Sprintf("wrong byte at %d", s.in+i)
			}
		}
		s.received(m)
		got += m
		if err != nil && got == 0 {
			return outcome(err)
		}
		if err != nil {
			return fmt.Sprintf("%d, then %s", got, outcome(err))
		}
		time.Sleep(pause)
	}
	return ""
}

// poll returns the names of the events that are present or occur within limit.
func (s *script) poll(events int16, limit time.Duration) (string, error) {
	p := []unix.PollFd{{Fd: int32(s.c), Events: events}}
	if _, err := unix.Poll(p, int(limit.Milliseconds())); err != nil && err != unix.EINTR {
		return "", err
	}
	var names []string
	for _, e := range []struct {
		bit  int16
		name string
	}{
		{unix.POLLIN, "IN"}, {unix.POLLPRI, "PRI"}, {unix.POLLOUT, "OUT"},
		{unix.POLLRDHUP, "RDHUP"}, {unix.POLLHUP, "HUP"}, {unix.POLLERR, "ERR"},
	} {
		if p[0].Revents&e.bit != 0 {
			names = append(names, e.name)
		}
	}
	if names == nil {
		return "nothing", nil
	}
	return strings.Join(names, " "), nil
}

// wait waits for a file.
func (s *script) wait(name string) error {
	for {
		_, err := os.Stat(filepath.Join(s.dir, name))
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		time.Sleep(pollFiles)
	}
}
