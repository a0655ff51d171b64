// SPDX-License-Identifier: Apache-2.0

package face

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/nl"
)

// Version is the release of smc-tools whose behaviour the faces have.
const Version = "1.8.5"

// Failed is the exit status of a failed object command of smcr and smcd: -1.
const Failed = 255

// An Env is what a face runs in.
type Env struct {
	*cmdutil.Factory

	// Argv0 is what the program was called by, and Name the same without
	// folders.
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

// Printf prints to standard output. A reader that has gone is no error, as with
// smc-tools.
func (e *Env) Printf(format string, args ...any) { fmt.Fprintf(e.IO.Out, format, args...) }

// Errorf prints to standard error.
func (e *Env) Errorf(format string, args ...any) { fmt.Fprintf(e.IO.ErrOut, format, args...) }

// Buffer makes Printf collect what it prints into large writes, for tables, until
// flush is called.
func (e *Env) Buffer() (flush func()) {
	before, streams := e.IO, *e.IO
	buf := bufio.NewWriterSize(before.Out, 64<<10)
	streams.Out, e.IO = buf, &streams
	return func() {
		buf.Flush() // as Printf: a reader that has gone is no error
		e.IO = before
	}
}

// As returns an Env for another face on other streams.
func (e *Env) As(name string, out, errOut io.Writer) *Env {
	f, streams := *e.Factory, *e.IO
	streams.Out, streams.ErrOut = out, errOut
	f.IO = &streams
	return &Env{Factory: &f, Argv0: name, Name: name, Getenv: e.Getenv, UID: e.UID, netdevs: e.netdevs}
}

// TakeBackend removes --backend and its value from the beginning of a command
// line and remembers the value. All faces know this one option more.
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

// ErrNoModule is returned by Open when there is no SMC stack at all, or the one
// that was named answers and knows no SMC.
var ErrNoModule = errors.New("SMC module not loaded")

// Open connects to the one stack that a face asks: with "auto" the user-space
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
		// A stack that belongs to somebody else does not hide the kernel's.
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

// OpenFailed prints why Open failed with the prefix that the face has for errors,
// and returns the exit status. Places that smc-tools does not know have the
// messages and statuses of smcr.
func (e *Env) OpenFailed(err error, prefix string) int {
	var said *cmdutil.Error
	if errors.As(err, &said) {
		e.Errorf("%s: %s\n", e.Name, said.Text)
		return cmdutil.ExitCode(err)
	}
	e.Errorf("%s: %s\n", prefix, ErrorText(err))
	return 1
}

// answers reports whether the place of a stack has anybody who answers. The
// kernel always does.
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
