// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"smcr/internal/testing/guest/control"

	"golang.org/x/sys/unix"
)

// outputDelay is how long the agent waits for the output of a command that has ended, if
// another process still has the output open.
const outputDelay = time.Second

// A server runs the commands of the host.
type server struct {
	port io.ReadWriter

	sendMu sync.Mutex

	mu   sync.Mutex
	pids map[uint32]int // process group by command
}

// serve runs commands until the host closes the port. The error is that of the port. The
// commands end with the machine.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	s := &server{port: port, pids: make(map[uint32]int)}
	if err := s.sendJSON(control.TypeHello, 0, hello()); err != nil {
		return err
	}
	r := control.NewReader(port)
	for {
		f, err := r.Next()
		if err != nil {
			return fmt.Errorf("read from the host: %w", err)
		}
		switch f.Type {
		case control.TypeStart:
			s.start(f)
		case control.TypeSignal:
			if len(f.Data) == 1 {
				s.signal(f.Command, syscall.Signal(f.Data[0]))
			}
		}
	}
}

// openPort opens the virtio-serial port of the control channel. It finds the port by
// itself, because there is no udev.
func openPort() (*os.File, error) {
	ports, err := filepath.Glob("/sys/class/virtio-ports/*")
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if name, err := os.ReadFile(filepath.Join(p, "name")); err == nil && strings.TrimSpace(string(name)) == control.PortName {
			return os.OpenFile(filepath.Join("/dev", filepath.Base(p)), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no virtio-serial port %s", control.PortName)
}

func hello() control.Hello {
	var h control.Hello
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		h.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) == nil {
		h.Uptime = time.Duration(ts.Nano()).Seconds()
	}
	return h
}

func (s *server) send(typ control.Type, command uint32, data []byte) error {
	b, err := control.Frame{Type: typ, Command: command, Data: data}.AppendBinary(nil)
	if err != nil {
		return err
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	_, err = s.port.Write(b)
	return err
}

func (s *server) sendJSON(typ control.Type, command uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(typ, command, b)
}

// signal sends a signal to the process group of a command. It is no error if the command
// has ended: its exit is on the way.
func (s *server) signal(command uint32, sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid, ok := s.pids[command]; ok {
		_ = syscall.Kill(-pid, sig)
	}
}

// start starts a command and leaves the rest to a goroutine. The next frame waits
// meanwhile, so that a signal cannot arrive before the start.
func (s *server) start(f control.Frame) {
	end := func(exit control.Exit) {
		// If the host has closed the port, the machine ends soon.
		_ = s.sendJSON(control.TypeExit, f.Command, exit)
	}
	var start control.Start
	if err := json.Unmarshal(f.Data, &start); err != nil {
		end(control.Exit{Status: -1, Error: err.Error()})
		return
	}
	cmd, err := s.startCommand(f.Command, start)
	if err != nil {
		end(control.Exit{Status: -1, Error: err.Error()})
		return
	}
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		delete(s.pids, f.Command)
		s.mu.Unlock()
		end(exitOf(cmd.ProcessState, err))
	}()
}

func (s *server) startCommand(id uint32, start control.Start) (*exec.Cmd, error) {
	if len(start.Argv) == 0 {
		return nil, errors.New("empty command")
	}
	cmd := exec.Command(start.Argv[0], start.Argv[1:]...)
	cmd.Dir = cmp.Or(start.Dir, "/")
	cmd.Env = append(os.Environ(), start.Env...)
	cmd.WaitDelay = outputDelay
	if start.Terminal {
		tty, err := openTerminal(start.Columns, start.Rows)
		if err != nil {
			return nil, err
		}
		defer tty.Close() // the command has its own copies
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	} else {
		cmd.Stdin = bytes.NewReader(start.Stdin)
		cmd.Stdout = output{s, control.TypeStdout, id}
		cmd.Stderr = output{s, control.TypeStderr, id}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[id] = cmd.Process.Pid
	return cmd, nil
}

func exitOf(state *os.ProcessState, err error) control.Exit {
	exit := control.Exit{Status: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		exit.Signal = int(ws.Signal())
	}
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) && !errors.Is(err, exec.ErrWaitDelay) {
		exit.Error = err.Error()
	}
	return exit
}

// openTerminal opens the terminal of the guest and sets its size.
func openTerminal(columns, rows uint16) (*os.File, error) {
	tty, err := os.OpenFile("/dev/hvc0", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if columns > 0 && rows > 0 {
		size := &unix.Winsize{Row: rows, Col: columns}
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, size); err != nil {
			tty.Close()
			return nil, fmt.Errorf("size of the terminal: %w", err)
		}
	}
	return tty, nil
}

// output sends the output of a command as frames.
type output struct {
	s       *server
	typ     control.Type
	command uint32
}

// Write sends one frame, or several if there is much data.
func (o output) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		chunk := b[n:min(len(b), n+control.MaxData)]
		if err := o.s.send(o.typ, o.command, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(b), nil
}
