// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/nl"
)

// Version is the release of smc-tools whose behaviour the programs have.
const Version = "1.8.5"

// Failed is the exit status of a failed object command of smcr and smcd: -1.
const Failed = 255

// An Env is the environment of a program.
type Env struct {
	*cmdutil.Factory

	// Argv0 is the name by which the program was called, and Name is its last
	// element.
	Argv0, Name string

	// Getenv reads the environment.
	Getenv func(string) string

	// UID is the real user ID of the process.
	UID int

	netdevs map[uint32]string // filled by NetDevName
}

// NewEnv returns the Env of the process for a program called as argv0.
func NewEnv(f *cmdutil.Factory, argv0 string) *Env {
	return &Env{Factory: f, Argv0: argv0, Name: filepath.Base(argv0), Getenv: os.Getenv, UID: os.Getuid()}
}

// Printf prints to standard output, with arguments without control characters. Like the
// programs of smc-tools, it ignores that nobody reads.
func (e *Env) Printf(format string, args ...any) { printable.Fprintf(e.IO.Out, format, args...) }

// Errorf prints to standard error, with arguments without control characters.
func (e *Env) Errorf(format string, args ...any) { printable.Fprintf(e.IO.ErrOut, format, args...) }

// Buffer makes Printf collect what it prints into large writes, for tables, until
// flush is called.
func (e *Env) Buffer() (flush func()) {
	before, streams := e.IO, *e.IO
	buf := bufio.NewWriterSize(before.Out, 64<<10)
	streams.Out, e.IO = buf, &streams
	return func() {
		buf.Flush() // Printf ignores errors, too
		e.IO = before
	}
}

// As returns an Env for another program on other streams.
func (e *Env) As(name string, out, errOut io.Writer) *Env {
	f, streams := *e.Factory, *e.IO
	streams.Out, streams.ErrOut = out, errOut
	f.IO = &streams
	return &Env{Factory: &f, Argv0: name, Name: name, Getenv: e.Getenv, UID: e.UID, netdevs: e.netdevs}
}

// TakeBackend removes --backend and its value from the beginning of a command
// line and remembers the value. All programs have this option in addition to those of
// smc-tools.
func (e *Env) TakeBackend(args []string) []string {
	for len(args) > 0 {
		if v, ok := strings.CutPrefix(args[0], "--backend="); ok {
			e.Backend, args = v, args[1:]
		} else if args[0] == "--backend" && len(args) > 1 {
			e.Backend, args = args[1], args[2:]
		} else {
			break
		}
	}
	return args
}

// ErrNoModule is the error of Open if there is no SMC stack, or if the stack that
// --backend names answers but has no SMC.
var ErrNoModule = errors.New("SMC module not loaded")

// Open connects to the stack that a program asks: with "auto" the user-space
// stack of this network namespace, or the kernel's where there is none. The
// caller closes it.
func (e *Env) Open(ctx context.Context) (nl.Control, error) {
	backend := e.Backend
	if backend == "auto" {
		m, err := e.Dial(ctx, "user")
		if err == nil {
			e.Backend = "user"
			return m[0], nil
		}
		// If the user-space stack belongs to another user, the kernel's is asked.
		if !errors.Is(err, nl.ErrNoBackend) && !errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		backend = "kernel"
	}
	m, err := e.Dial(ctx, backend)
	switch {
	case errors.Is(err, nl.ErrNoBackend) && answers(ctx, backend):
		return nil, ErrNoModule
	case err != nil:
		return nil, err
	}
	e.Backend = backend
	return m[0], nil
}

// OpenFailed prints why Open failed, with the prefix that the program has for errors,
// and returns the exit status. For values of --backend that smc-tools does not have, the
// messages and statuses are those of smcr.
func (e *Env) OpenFailed(err error, prefix string) int {
	var said *cmdutil.Error
	if errors.As(err, &said) {
		e.Errorf("%s: %s\n", e.Name, said.Text)
		return cmdutil.ExitCode(err)
	}
	e.Errorf("%s: %s\n", prefix, ErrorText(err))
	return 1
}

// answers reports whether a process answers at the address of a stack. The kernel
// always answers.
func answers(ctx context.Context, backend string) bool {
	if backend == "kernel" {
		return true
	}
	address, ok := strings.CutPrefix(backend, "unix:")
	if !ok {
		return false
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unixpacket", address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// NetDevName returns the name of a network device, or "" for one that is not in
// this network namespace.
func (e *Env) NetDevName(index uint32) string {
	if index == 0 {
		return ""
	}
	if e.netdevs == nil {
		e.netdevs = make(map[uint32]string)
		list, err := net.Interfaces()
		if err != nil {
			return ""
		}
		for _, dev := range list {
			e.netdevs[uint32(dev.Index)] = dev.Name
		}
	}
	return e.netdevs[index]
}

// IsPrefix reports whether word abbreviates name: a prefix of it, but not empty.
func IsPrefix(word, name string) bool { return word != "" && strings.HasPrefix(name, word) }
