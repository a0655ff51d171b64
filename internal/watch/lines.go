// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"smcr/internal/cmdutil"
)

// headerEvery is after how many lines the header is repeated on a terminal: so it stays on the
// screen.
const headerEvery = 20

// LineOptions are the options of [Lines].
type LineOptions struct {
	Interval time.Duration
	Count    int    // views to show; 0: until interrupted
	Format   string // [cmdutil.FormatTable] or [cmdutil.FormatJSON]
	Header   string // of the lines of a table, with a line end
}

// Lines shows the lines that read returns in each interval, for scripts: in JSON as [Loop]
// does, otherwise as the lines alone, after a header. The first view is not shown: read learns
// from it what the rates of the next one count from. A signal (SIGINT, SIGTERM) ends Lines
// without an error.
func Lines[T any](ctx context.Context, streams *cmdutil.IOStreams, o LineOptions, read func(context.Context) (View[T], error)) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var s screen = &plain{w: streams.Out, header: o.Header, again: streams.IsTerminal()}
	if o.Format == cmdutil.FormatJSON {
		s = lines{streams.Out}
	}
	if o.Count > 0 {
		s = &limited{screen: s, left: o.Count, done: cancel}
	}
	return repeat(ctx, o.Interval, &skipping{screen: s}, streams.ErrOut, read)
}

// skipping does not show the first view.
type skipping struct {
	screen
	begun bool
}

func (s *skipping) show(now time.Time, rows any, text func(io.Writer) error) error {
	if !s.begun {
		s.begun = true
		return nil
	}
	return s.screen.show(now, rows, text)
}

// plain prints the lines of all views under one header.
type plain struct {
	w      io.Writer
	header string
	again  bool // the header is repeated
	lines  int  // since the header
	begun  bool
}

func (p *plain) show(_ time.Time, _ any, text func(io.Writer) error) error {
	var b, lines bytes.Buffer
	if err := text(&lines); err != nil {
		return err
	}
	if !p.begun || p.again && p.lines >= headerEvery {
		fmt.Fprint(&b, p.header)
		p.begun, p.lines = true, 0
	}
	p.lines += bytes.Count(lines.Bytes(), []byte("\n"))
	b.Write(lines.Bytes())
	_, err := p.w.Write(b.Bytes())
	return err
}

func (p *plain) failed(now time.Time, err error, errOut io.Writer) error {
	return say(now, err, errOut)
}

// limited ends a loop after a number of views.
type limited struct {
	screen
	left int
	done func()
}

func (c *limited) show(now time.Time, rows any, text func(io.Writer) error) error {
	err := c.screen.show(now, rows, text)
	if c.left--; c.left == 0 {
		c.done()
	}
	return err
}
