// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/trace/capture"
	"smcr/internal/trace/decode"
)

// standard stands for standard input or output in place of a file.
const standard = "-"

// A sink prints the events that the filter selects, and writes their packets to a file.
type sink struct {
	filter  *decode.Filter
	json    bool
	verbose bool
	text    *bufio.Writer // nil: the packets take standard output
	file    *os.File      // of --pcapng, unless it is standard output
	pcapng  *capture.Writer
	shown   int
	count   int // 0: no limit
}

func newSink(o *options) (*sink, error) {
	s := &sink{filter: &o.filter, json: o.format == cmdutil.FormatJSON, verbose: o.verbose, count: o.count}
	if o.pcapng != standard {
		s.text = bufio.NewWriter(o.IO.Out)
	}
	if o.pcapng == "" {
		return s, nil
	}
	var w io.Writer = o.IO.Out
	if o.pcapng == standard {
		if o.IO.IsTerminal() {
			return nil, cmdutil.UsageError("the packets would go to the terminal: redirect the output, or give --pcapng the name of a file")
		}
	} else {
		if err := notSame(o.file, o.pcapng); o.file != "" && err != nil {
			return nil, err
		}
		// Addresses and keys of connections are not for every user of the host.
		f, err := os.OpenFile(o.pcapng, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot write the packets: %w", err)
		}
		s.file, w = f, f
	}
	var err error
	if s.pcapng, err = capture.NewWriter(w, o.program()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// notSame refuses to write to the file that is read.
func notSame(read, write string) error {
	a, aerr := os.Stat(read)
	b, berr := os.Stat(write)
	if aerr == nil && berr == nil && os.SameFile(a, b) && a.Mode().IsRegular() {
		return cmdutil.UsageError("%s is the file that is read: write the packets to another one", write)
	}
	return nil
}

// packet prints the events of one packet, and writes the packet if the filter selects one
// of them. The fields of events are valid until it returns.
func (s *sink) packet(p *decode.Packet, events []*decode.Event) error {
	var comments []string
	for _, e := range events {
		if !s.filter.Match(e) || s.enough() {
			continue
		}
		s.shown++
		if s.pcapng != nil {
			comments = append(comments, comment(e))
		}
		if err := s.print(e); err != nil {
			return err
		}
	}
	if len(comments) == 0 {
		return nil
	}
	return s.pcapng.Write(p, comments...)
}

// enough reports whether as many events were shown as the user wants.
func (s *sink) enough() bool { return s.count > 0 && s.shown >= s.count }

func (s *sink) print(e *decode.Event) error {
	switch {
	case s.text == nil:
		return nil
	case s.json:
		e.Time = e.Time.UTC()
		return output.JSONLine(s.text, e.JSON())
	}
	e.Time = e.Time.Local()
	_, err := s.text.WriteString(e.Line(s.verbose) + "\n")
	return err
}

// comment says what a dissector cannot know: the connection, the link group and the queue
// pair of the source.
func comment(e *decode.Event) string {
	c := e.Message
	if e.Reply {
		c += " reply"
	}
	if e.Conn != (decode.Conn{}) {
		c += ", connection " + e.Conn.String()
	}
	if e.Group != "" {
		c += ", link group " + e.Group
	}
	if e.SrcQPN != 0 {
		c += ", from queue pair " + e.SrcQPN.String()
	}
	return c
}

// flush writes what is in memory.
func (s *sink) flush() error {
	if s.text != nil {
		if err := s.text.Flush(); err != nil {
			return err
		}
	}
	if s.pcapng != nil {
		return s.pcapng.Flush()
	}
	return nil
}

// close ends the output.
func (s *sink) close() error {
	err := s.flush()
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
