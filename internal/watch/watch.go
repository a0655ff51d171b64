// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/output"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// DefaultInterval is the interval of --watch without a value.
const DefaultInterval = 2 * time.Second

// minInterval limits the load that a typing error could cause.
const minInterval = 100 * time.Millisecond

// Options is the value of --watch.
type Options struct {
	// Interval is the time from one list to the next; 0 shows one.
	Interval time.Duration
}

// AddFlag adds --watch to a command without arguments. The interval may also follow
// the flag as a separate word. AddFlag therefore sets the Args of the command.
func (o *Options) AddFlag(cmd *cobra.Command) {
	cmd.Flags().VarP((*interval)(o), "watch", "w", "repeat the output every `interval`, 2s by default, until interrupted")
	cmd.Flags().Lookup("watch").NoOptDefVal = DefaultInterval.String()
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && o.Interval == DefaultInterval {
			if (*interval)(o).Set(args[0]) == nil {
				return nil
			}
		}
		return cmdutil.NoArgs(cmd, args)
	}
	// An unknown name would be an error of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("watch", cobra.FixedCompletions([]string{"1s", "2s", "5s"}, cobra.ShellCompDirectiveNoFileComp))
}

// AddInterval adds --interval to a command. *value is its default.
func AddInterval(cmd *cobra.Command, value *time.Duration, usage string) {
	cmd.Flags().Var((*every)(value), "interval", usage+", such as 500ms, 5s or `seconds`")
	// An unknown name would be an error of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("interval", cobra.FixedCompletions([]string{"1s", "2s", "5s"}, cobra.ShellCompDirectiveNoFileComp))
}

// SetInterval sets *value to a word of the command line: a duration, or a number of seconds.
func SetInterval(value *time.Duration, word string) error { return (*every)(value).Set(word) }

// every is the flag value of --interval.
type every time.Duration

func (e *every) Type() string { return "interval" }

func (e *every) String() string { return time.Duration(*e).String() }

func (e *every) Set(s string) error {
	var i interval
	if err := i.Set(s); err != nil {
		return err
	}
	*e = every(i.Interval)
	return nil
}

// IsInterval reports whether a word is a value of --watch.
func IsInterval(s string) bool { return new(interval).Set(s) == nil }

// interval is the flag value: a duration, or a number of seconds.
type interval Options

func (i *interval) Type() string { return "interval" }

func (i *interval) String() string {
	if i.Interval == 0 {
		return ""
	}
	return i.Interval.String()
}

func (i *interval) Set(s string) error {
	d, err := time.ParseDuration(s)
	if sec, ferr := strconv.ParseFloat(s, 64); ferr == nil && sec > 0 && sec < 1e6 {
		d, err = time.Duration(sec*float64(time.Second)), nil
	}
	if err != nil || d < minInterval {
		return fmt.Errorf("use a time such as 2s or 500ms, at least %v", minInterval)
	}
	i.Interval = d
	return nil
}

// A View is one list: its rows, which are only for JSON, and a function that prints it
// as text.
type View[T any] struct {
	Rows []T
	Text func(io.Writer) error
}

// Loop shows the list that read returns, once or repeatedly. If repeatedly, a signal
// (SIGINT, SIGTERM) ends it without an error.
func Loop[T any](ctx context.Context, streams *cmdutil.IOStreams, o Options, format string, read func(context.Context) (View[T], error)) error {
	if o.Interval == 0 {
		v, err := read(ctx)
		if err != nil {
			return err
		}
		if format == cmdutil.FormatJSON {
			return output.JSON(streams.Out, v.Rows)
		}
		return v.Text(streams.Out)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var s screen
	switch {
	case format == cmdutil.FormatJSON:
		s = lines{streams.Out}
	case streams.IsTerminal():
		s = &terminal{w: streams.Out, title: fmt.Sprintf("every %v", o.Interval), size: sizeOf(streams.Out)}
	default:
		s = &appender{w: streams.Out}
	}
	return repeat(ctx, o.Interval, s, streams.ErrOut, read)
}

// repeat shows a list each interval until ctx ends. The first one must succeed. If a
// later one fails, for example because the stack is restarted, repeat prints the error
// and tries the next.
func repeat[T any](ctx context.Context, every time.Duration, s screen, errOut io.Writer, read func(context.Context) (View[T], error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		v, err := read(ctx)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			if err := s.failed(now, err, errOut); err != nil {
				return err
			}
		default:
			rows := v.Rows
			if rows == nil {
				rows = []T{}
			}
			if err := s.show(now, rows, v.Text); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A screen is where lists appear, one after the other.
type screen interface {
	show(now time.Time, rows any, text func(io.Writer) error) error
	failed(now time.Time, err error, errOut io.Writer) error
}

// lines prints each list as one line of JSON.
type lines struct{ w io.Writer }

func (l lines) show(now time.Time, rows any, _ func(io.Writer) error) error {
	return output.JSONLine(l.w, struct {
		Time time.Time `json:"time"`
		Rows any       `json:"rows"`
	}{now.UTC().Truncate(time.Millisecond), rows})
}

func (l lines) failed(now time.Time, err error, errOut io.Writer) error {
	return say(now, err, errOut)
}

// say prints the error of a list that could not be read.
func say(now time.Time, err error, errOut io.Writer) error {
	_, werr := fmt.Fprintf(errOut, "smcr: %s: %s\n", now.UTC().Format(time.RFC3339), cmdutil.Message(err))
	return werr
}

// appender prints each list under a line with the time.
type appender struct {
	w    io.Writer
	more bool
}

func (a *appender) show(now time.Time, _ any, text func(io.Writer) error) error {
	var b bytes.Buffer
	if a.more {
		b.WriteByte('\n')
	}
	a.more = true
	fmt.Fprintf(&b, "# %s\n", now.UTC().Format(time.RFC3339))
	if err := text(&b); err != nil {
		return err
	}
	_, err := a.w.Write(b.Bytes())
	return err
}

func (a *appender) failed(now time.Time, err error, errOut io.Writer) error {
	return say(now, err, errOut)
}

// terminal redraws one list in place. To avoid flicker, it clears each line when it
// writes it, and not all lines before.
type terminal struct {
	w     io.Writer
	title string
	size  func() (width, height int)
	drawn bool
}

// Control sequences of ECMA-48: home, clear to the end of the line, clear to
// the end of the screen, clear everything.
const (
	home     = "\x1b[H"
	clearEOL = "\x1b[K"
	clearEOS = "\x1b[J"
	clearAll = "\x1b[2J"
)

func (t *terminal) show(now time.Time, _ any, text func(io.Writer) error) error {
	var b bytes.Buffer
	if err := text(&b); err != nil {
		return err
	}
	return t.draw(now, b.String())
}

func (t *terminal) failed(now time.Time, err error, _ io.Writer) error {
	return t.draw(now, cmdutil.Message(err)+"\n")
}

func (t *terminal) draw(now time.Time, text string) error {
	width, height := t.size()
	var b strings.Builder
	if !t.drawn {
		b.WriteString(clearAll)
		t.drawn = true
	}
	b.WriteString(home)
	all := append([]string{now.Format(time.TimeOnly) + ", " + t.title, ""}, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	if height > 2 && len(all) >= height {
		all = append(all[:height-2], fmt.Sprintf("(%d more lines)", len(all)-height+2))
	}
	for _, l := range all {
		if r := []rune(l); width > 0 && len(r) > width {
			l = string(r[:width])
		}
		b.WriteString(l + clearEOL + "\n")
	}
	b.WriteString(clearEOS)
	_, err := io.WriteString(t.w, b.String())
	return err
}

// sizeOf returns a function that returns the current size of a terminal; 0 means
// unknown.
func sizeOf(w io.Writer) func() (int, int) {
	f, ok := w.(*os.File)
	if !ok {
		return func() (int, int) { return 0, 0 }
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return width, height
	}
}
