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

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
