// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/term"
)

// IOStreams are the standard streams of a command. Commands use them in place of those
// of package os, so that they can be tested without a terminal. An IOStreams belongs to
// one command at a time.
type IOStreams struct {
	In     io.Reader
	Out    io.Writer
	ErrOut io.Writer

	progress *Progress // what the command waits for, or nil
}

// SystemStreams returns the streams of the process.
func SystemStreams() *IOStreams {
	return &IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
}

// MemoryStreams returns streams in memory, and the buffers that are their input, output
// and errors.
func MemoryStreams() (streams *IOStreams, in, out, errOut *bytes.Buffer) {
	in, out, errOut = new(bytes.Buffer), new(bytes.Buffer), new(bytes.Buffer)
	return &IOStreams{In: in, Out: out, ErrOut: errOut}, in, out, errOut
}

// IsTerminal reports whether the output is a terminal.
func (s *IOStreams) IsTerminal() bool { return isTerminal(s.Out) }

// InIsTerminal reports whether the input is a terminal.
func (s *IOStreams) InIsTerminal() bool { return isTerminal(s.In) }

// Colored reports whether the output may have colors: it is a terminal that knows them, and
// the environment variable NO_COLOR is not set (https://no-color.org).
func (s *IOStreams) Colored() bool {
	return s.IsTerminal() && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// A Color is a control sequence of ECMA-48 that sets the color of the text after it.
type Color string

// Colors.
const (
	Green  Color = "\x1b[32m" // what is as it should be
	Red    Color = "\x1b[31m" // what is not
	Yellow Color = "\x1b[33m" // what is less than it could be
	Faint  Color = "\x1b[2m"  // what does not matter now
)

// colorOff ends a [Color].
const colorOff = "\x1b[m"

// Paint returns text in a color, if the output may have colors.
func (s *IOStreams) Paint(c Color, text string) string {
	if !s.Colored() {
		return text
	}
	return string(c) + text + colorOff
}
