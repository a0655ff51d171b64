// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// second is the first argument of the process that installs the filter and becomes the
// program.
const second = "inject-second-stage"

// controlFD is the descriptor of the requests.
const controlFD = 3

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(125)
	}
	os.Exit(status)
}

func run(args []string) (int, error) {
	if len(args) > 2 && args[0] == second {
		return 0, become(args[1], args[2:])
	}
	if len(args) < 2 {
		return 0, errors.New("usage: inject CALL[,CALL...] PROGRAM [ARGUMENT...]")
	}
	if _, err := filter(args[0]); err != nil {
		return 0, err
	}
	unix.CloseOnExec(controlFD)
	s := &state{}
	control := os.NewFile(controlFD, "control")
	go s.serve(control)
	// All requests of ptrace must come from the thread that started the program.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", append([]string{second}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	t := tracer{main: cmd.Process.Pid, state: s, groups: map[int]int{}, known: map[int]bool{}}
	status, err := t.run()
	// The last answer needs no request. The test may have closed its end.
	_ = json.NewEncoder(control).Encode(s.replace(Request{}))
	return status, err
}

// become installs the filter and executes the program.
func become(list string, argv []string) error {
	prog, err := filter(list)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := install(prog); err != nil {
		return err
	}
	return unix.Exec(path, argv, os.Environ())
}

// serve answers requests until the test closes its end.
func (s *state) serve(c io.ReadWriter) {
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var r Request
		if in.Decode(&r) != nil {
			return
		}
		if out.Encode(s.replace(r)) != nil {
			return
		}
	}
}
