// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"smcr/internal/owner"
	"smcr/internal/printable"
	"smcr/internal/typo"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// BackendEnv is the environment variable that stands for --backend.
const BackendEnv = "SMCR_BACKEND"

// A Factory gives a command what it works with.
type Factory struct {
	IO      *IOStreams
	Version string

	// Backend is the value of --backend.
	Backend string

	// Dial connects to the stacks that a valid value of --backend names.
	Dial func(ctx context.Context, backend string) (nl.Multi, error)

	// Ending connects to the stacks in user space of this network namespace that have handed
	// over to another process and still have connections. Nil: there are none.
	Ending func(ctx context.Context) (nl.Multi, error)

	// Start starts the stack in user space of this network namespace, for a
	// change where there is no stack at all. Nil: such a change fails.
	Start func(ctx context.Context) error

	// NetDev returns the name of a network device by its index.
	NetDev func(index uint32) string

	// Owners returns which processes have sockets. Nil: nobody is asked.
	Owners func() owner.Lookup
}

// NewFactory returns the Factory of the program.
func NewFactory(version string) *Factory {
	return &Factory{
		IO:      SystemStreams(),
		Version: version,
		Backend: DefaultBackend(os.Getenv),
		Dial:    Dial,
		Ending:  DialEnding,
		NetDev:  remember(NetDev),
		Owners:  owner.Read,
	}
}

// DefaultBackend returns the value of --backend where it is not given.
func DefaultBackend(getenv func(string) string) string {
	if v := getenv(BackendEnv); v != "" {
		return v
	}
	return "auto"
}

// startOne is how to have a stack: from now on and at each boot, or for a program.
const startOne = "start one with 'systemctl enable --now smcr', or for one program with 'smcr run -- PROGRAM'"

// noSMC is the answer of all commands where there is no stack at all.
const noSMC = "no SMC: this kernel does not support it and no user-space stack runs in this network namespace: " +
	startOne

// Dial connects to the kernel's stack ("kernel"), the one in user space in this
// network namespace ("user"), one that has handed over to it ("ending-N"), the one behind a
// socket ("unix:ADDRESS"), or whichever of the first two there are ("auto"). The error says
// what to do.
func Dial(ctx context.Context, backend string) (nl.Multi, error) {
	one := func(c *nl.Client, err error) (nl.Multi, error) {
		if err != nil {
			return nil, err
		}
		return nl.Multi{{Name: c.Backend(), Control: c}}, nil
	}
	var m nl.Multi
	var err error
	none := ""
	switch address, isUnix := strings.CutPrefix(backend, "unix:"); {
	case isUnix && address != "":
		none = fmt.Sprintf("no smcr stack listens at %s", address)
		m, err = one(nl.DialUnix(ctx, address))
	case backend == "kernel":
		none = "the kernel has no SMC: try 'modprobe smc', or start the user-space stack with 'smcr serve'"
		m, err = one(nl.DialKernel(ctx))
	case backend == "user":
		none = "no smcr stack in this network namespace: " + startOne
		m, err = one(nl.DialUser(ctx))
	case strings.HasPrefix(backend, "ending-"):
		none = fmt.Sprintf("no smcr stack %q in this network namespace: it may have ended", backend)
		m, err = one(nl.DialEnding(ctx, backend))
	case backend == "auto":
		none = noSMC
		m, err = nl.DialAll(ctx)
	default:
		text := "must be auto, kernel, user, ending-N or unix:PATH"
		return nil, UsageError("unknown backend %q: %s", backend, typo.Meant(backend, []string{"auto", "kernel", "user"}, text))
	}
	if errors.Is(err, nl.ErrNoBackend) {
		return nil, Say(err, "%s", none)
	}
	return m, err
}

// DialEnding connects to the stacks of this network namespace that have handed over to
// another process and still have connections. It leaves out those that end meanwhile.
func DialEnding(ctx context.Context) (nl.Multi, error) {
	var m nl.Multi
	for _, name := range nl.Ending() {
		c, err := nl.DialEnding(ctx, name)
		if errors.Is(err, nl.ErrNoBackend) {
			continue
		}
		if err != nil {
			m.Close()
			return nil, err
		}
		m = append(m, nl.Backend{Name: name, Control: c})
	}
	return m, nil
}

// NetDev returns the name of a network device of the current network namespace,
// "if" and the index for one that is not there, and "" for index 0.
func NetDev(index uint32) string {
	if index == 0 {
		return ""
	}
	dev, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return fmt.Sprintf("if%d", index)
	}
	return dev.Name
}

// nameLifetime is how long the name of a network device is believed: a table
// asks for the same few in each of its rows, --watch for years.
const nameLifetime = time.Second

// remember returns a function that returns what name does, or did shortly ago.
func remember(name func(uint32) string) func(uint32) string {
	var mu sync.Mutex
	var since time.Time
	known := make(map[uint32]string)
	return func(index uint32) string {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(since) > nameLifetime {
			clear(known)
			since = time.Now()
		}
		s, ok := known[index]
		if !ok {
			s = name(index)
			known[index] = s
		}
		return s
	}
}

// With calls fn with the stacks to ask and closes them.
//
// On a terminal, it says what it waits for after two seconds. A function that prints must call
// IO.Printing before.
func (f *Factory) With(ctx context.Context, fn func(context.Context, nl.Multi) error) error {
	defer f.IO.Progress("waiting for the SMC stack").Stop()
	m, err := f.Dial(ctx, f.Backend)
	if err != nil {
		return explain(err)
	}
	defer m.Close()
	return explain(fn(ctx, m))
}

// EachEnding calls fn with each stack that has handed over to another process and still has
// connections, if the user asks for the stack in user space. It ignores the error of a stack
// that ends meanwhile.
func (f *Factory) EachEnding(ctx context.Context, fn func(context.Context, nl.Multi) error) error {
	if f.Ending == nil || f.Backend != "auto" && f.Backend != "user" {
		return nil
	}
	m, err := f.Ending(ctx)
	if err != nil {
		return explain(err)
	}
	defer m.Close()
	for i := range m {
		if err := fn(ctx, m[i:i+1]); err != nil && !ended(err) {
			return explain(err)
		}
	}
	return nil
}

// ended reports whether err means that a stack has ended before it answered.
func ended(err error) bool {
	for _, e := range []error{nl.ErrNoBackend, io.EOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Action returns a command of a noun without arguments that does one thing to the one stack
// to change.
func (f *Factory) Action(noun, use, short string, do func(nl.Control, context.Context) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  NoArgs,

		Example: fmt.Sprintf("  smcr %s %s\n  smcr %[1]s %[2]s --backend user", noun, use),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.Change(cmd.Context(), func(ctx context.Context, c nl.Control) error { return do(c, ctx) })
		},
	}
}

// WithOne calls fn with the one stack that a command is about. Where there are
// several, the user must say which.
func (f *Factory) WithOne(ctx context.Context, fn func(context.Context, nl.Control) error) error {
	return f.With(ctx, func(ctx context.Context, m nl.Multi) error {
		if len(m) > 1 {
			var names []string
			for _, b := range m {
				names = append(names, b.Name)
			}
			return UsageError("there are several SMC stacks (%s): choose one with --backend", strings.Join(names, ", "))
		}
		return fn(ctx, m[0])
	})
}

// Change calls fn, which changes the one stack, as WithOne does. Where there is no
// stack it starts that in user space. A change that ends with the stack is told
// on standard error.
func (f *Factory) Change(ctx context.Context, fn func(context.Context, nl.Control) error) error {
	g := *f
	g.Dial = f.DialOrStart
	return g.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		if err := fn(ctx, c); err != nil {
			return err
		}
		f.NoteVolatile(ctx, c)
		return nil
	})
}

// DialOrStart is Dial, and starts the stack in user space where there is none and
// it may be meant.
func (f *Factory) DialOrStart(ctx context.Context, backend string) (nl.Multi, error) {
	m, err := f.Dial(ctx, backend)
	if f.Start == nil || !errors.Is(err, nl.ErrNoBackend) || backend != "auto" && backend != "user" {
		return m, err
	}
	f.IO.Waiting("starting the user-space stack")
	if err := f.Start(ctx); err != nil {
		return nil, err
	}
	return f.Dial(ctx, "user")
}

// NoteVolatile says that what was changed ends with the stack, where that is so.
func (f *Factory) NoteVolatile(ctx context.Context, c nl.Control) {
	info, err := c.SysInfo(ctx)
	f.IO.Printing()
	if err != nil || info.Stack == "" || info.StateFile != "" {
		return // it is done; the kernel keeps it, as the stack does
	}
	why := ""
	if info.StateError != "" {
		why = " (" + info.StateError + ")"
	}
	printable.Fprintf(f.IO.ErrOut, "smcr: done, but the change lasts only as long as the stack%s: "+
		"to keep it, write the output of 'smcr export' to the configuration file\n", why)
}

// explain gives errors that a user can do something about a text of their own.
func explain(err error) error {
	var said *Error
	var op *nl.OpError
	if err == nil || errors.As(err, &said) || !errors.As(err, &op) {
		return err
	}
	switch {
	case errors.Is(err, os.ErrPermission) && op.Op == "connect":
		return err // its text says who and why
	case errors.Is(err, os.ErrPermission) && op.Backend == "kernel":
		return Say(err, "operation not permitted: changing the kernel's SMC needs root (CAP_NET_ADMIN)")
	case errors.Is(err, os.ErrPermission) && op.Op == "trace":
		return Say(err, "operation not permitted: only root and the user who runs the smcr stack may trace it")
	case errors.Is(err, os.ErrPermission):
		return Say(err, "operation not permitted: only root and the user who runs the smcr stack may change it")
	case errors.Is(err, nl.ErrNotSupported):
		why := ""
		if op.ExtAck != "" {
			why = " (" + op.ExtAck + ")"
		}
		return Say(err, "%s: not supported by the %s SMC stack%s", op.Op, op.Backend, why)
	}
	return err
}

// Output formats.
const (
	FormatTable = "table" // columns of text
	FormatWide  = "wide"  // columns of text, with those that tables leave out
	FormatJSON  = "json"  // JSON
)

// AddFormatFlag adds the flag --output to a command.
func AddFormatFlag(cmd *cobra.Command, format *string, formats ...string) {
	values := strings.Join(formats, "|")
	*format = formats[0]
	cmd.Flags().VarP(&choice{format, formats}, "output", "o", "output `format`: "+values)
	// The error of an unknown name is one of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// A choice is a flag value out of a few.
type choice struct {
	value   *string
	choices []string
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return "format" }

func (c *choice) Set(s string) error {
	for _, v := range c.choices {
		if v == s {
			*c.value = s
			return nil
		}
	}
	return errors.New(typo.Choose(s, c.choices))
}
