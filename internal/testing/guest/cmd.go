// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	"smcr/internal/testing/guest/control"
)

const (
	// maxOutput limits each output of a command. What comes after it is dropped.
	maxOutput = 16 << 20

	// killLimit is how long a command may take to end after SIGKILL.
	killLimit = 10 * time.Second
)

// A Cmd is a command in a guest, before its start, running or ended. Its fields must be
// set before Start.
type Cmd struct {
	Argv  []string
	Env   []string // NAME=VALUE, added to the guest's environment
	Dir   string   // working directory, "/" by default
	Stdin []byte   // at most about 700 kB

	// Output also gets the standard output as it comes, if it is not nil. It must not block.
	Output io.Writer

	g        *Guest
	id       uint32
	tty      bool
	size     [2]uint16     // columns, rows
	done     chan struct{} // closed at the end
	exit     control.Exit  // valid after done
	guestErr error         // valid after done: set if the guest has ended before the command
	mu       sync.Mutex
	stdout   []byte
	stderr   []byte
	more     chan struct{} // closed and replaced at each output
}

// A Result has the output of a command.
type Result struct {
	Stdout, Stderr string
}

// Command returns a command that [Cmd.Start] starts.
func (g *Guest) Command(argv ...string) *Cmd { return &Cmd{Argv: argv, g: g} }

// Run runs a command to its end. The error is an [ExitError] unless the command ended
// with status 0. The Result is always valid. When the context ends, the command and its
// children are killed.
func (g *Guest) Run(ctx context.Context, argv ...string) (Result, error) {
	return g.Command(argv...).Run(ctx)
}

// Run starts the command and waits for its end, see [Guest.Run].
func (c *Cmd) Run(ctx context.Context) (Result, error) {
	if err := c.Start(); err != nil {
		return Result{}, err
	}
	return c.Wait(ctx)
}

// Start starts the command. Wait returns the error if the command cannot be started.
func (c *Cmd) Start() error {
	if c.done != nil {
		return errors.New("guest: command started twice")
	}
	c.done, c.more = make(chan struct{}), make(chan struct{})
	data, err := json.Marshal(control.Start{
		Argv: c.Argv, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin,
		Terminal: c.tty, Columns: c.size[0], Rows: c.size[1],
	})
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	g := c.g
	g.mu.Lock()
	if g.cause != nil {
		g.mu.Unlock()
		return fmt.Errorf("guest: start %s: %w", c.Argv[0], g.cause)
	}
	g.last++
	c.id = g.last
	g.commands[c.id] = c
	g.mu.Unlock()
	if err := g.send(control.TypeStart, c.id, data); err != nil {
		g.mu.Lock()
		delete(g.commands, c.id)
		g.mu.Unlock()
		return err
	}
	return nil
}

// Signal sends a signal to the process group of the command. It is no error if the
// command has ended.
func (c *Cmd) Signal(sig syscall.Signal) error {
	return c.g.send(control.TypeSignal, c.id, []byte{byte(sig)})
}

// Wait waits for the end of a command that Start has started, see [Guest.Run].
func (c *Cmd) Wait(ctx context.Context) (Result, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		// If the guest has ended, done is closed.
		_ = c.Signal(syscall.SIGKILL)
		select {
		case <-c.done:
		case <-time.After(killLimit):
		}
		return c.result(), fmt.Errorf("guest: %s: killed: %w; stderr: %s", c.Argv[0], context.Cause(ctx), lastPart(c.result().Stderr))
	}
	r := c.result()
	switch {
	case c.guestErr != nil:
		return r, fmt.Errorf("guest: %s: %w", c.Argv[0], c.guestErr)
	case c.exit.Status != 0 || c.exit.Error != "":
		return r, &ExitError{
			Argv: c.Argv, Status: c.exit.Status, Signal: c.exit.Signal, Reason: c.exit.Error,
			Stderr: lastPart(r.Stderr),
		}
	}
	return r, nil
}

func lastPart(s string) string { return s[max(0, len(s)-tailSize):] }

func (c *Cmd) result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Result{Stdout: string(c.stdout), Stderr: string(c.stderr)}
}

// WaitStdout waits until the command has written the text to its standard output. It
// fails if the command or the context ends before that.
func (c *Cmd) WaitStdout(ctx context.Context, text string) error {
	for {
		c.mu.Lock()
		found, more := bytes.Contains(c.stdout, []byte(text)), c.more
		c.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-more:
		case <-c.done:
			// The text may be the last output of the command.
			r, err := c.Wait(ctx)
			if bytes.Contains([]byte(r.Stdout), []byte(text)) {
				return nil
			}
			if err == nil {
				err = fmt.Errorf("exit status 0: %s", strings.TrimSpace(r.Stderr))
			}
			return fmt.Errorf("guest: %s ended before it wrote %q: %w", c.Argv[0], text, err)
		case <-ctx.Done():
			return fmt.Errorf("guest: %s did not write %q: %w", c.Argv[0], text, context.Cause(ctx))
		}
	}
}

// send writes a frame.
func (g *Guest) send(typ control.Type, command uint32, data []byte) error {
	b, err := control.Frame{Type: typ, Command: command, Data: data}.AppendBinary(nil)
	if err != nil {
		return err
	}
	g.sendMu.Lock()
	defer g.sendMu.Unlock()
	if _, err := g.port.Write(b); err != nil {
		return fmt.Errorf("guest: send to %s: %w", g.cfg.Name, errors.Join(g.ended(), err))
	}
	return nil
}

// read passes the frames of the agent to the commands until the machine ends.
func (g *Guest) read(r *control.Reader) {
	defer close(g.readerDone)
	var err error
	for err == nil {
		var f control.Frame
		if f, err = r.Next(); err == nil {
			err = g.deliver(f)
		}
	}
	// Without the agent, the machine cannot be used.
	g.proc.kill()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		err = ErrClosed
	}
	g.end(fmt.Errorf("%w%s", err, g.lastOutput()))

	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range maps.Values(g.commands) {
		c.guestErr = g.cause
		close(c.done)
	}
	clear(g.commands)
}

// deliver passes one frame to its command.
func (g *Guest) deliver(f control.Frame) error {
	g.mu.Lock()
	c := g.commands[f.Command]
	if f.Type == control.TypeExit {
		delete(g.commands, f.Command)
	}
	g.mu.Unlock()
	if c == nil {
		return fmt.Errorf("guest: frame of type %d for command %d, which does not run", f.Type, f.Command)
	}
	switch f.Type {
	case control.TypeStdout, control.TypeStderr:
		c.output(f)
	case control.TypeExit:
		if err := json.Unmarshal(f.Data, &c.exit); err != nil {
			c.guestErr = fmt.Errorf("guest: exit of %s: %w", c.Argv[0], err)
		}
		close(c.done)
	}
	return nil
}

func (c *Cmd) output(f control.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := &c.stdout
	if f.Type == control.TypeStderr {
		to = &c.stderr
	}
	*to = append(*to, f.Data[:min(len(f.Data), maxOutput-len(*to))]...)
	if f.Type == control.TypeStdout && c.Output != nil {
		_, _ = c.Output.Write(f.Data) // what failed is in the result
	}
	close(c.more)
	c.more = make(chan struct{})
}
