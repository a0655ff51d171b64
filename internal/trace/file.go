// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/trace/capture"
	"smcr/internal/trace/decode"
)

// readFile shows the events of a file.
func (o *options) readFile(ctx context.Context, out *sink) error {
	in, name := o.IO.In, "standard input"
	if o.file != standard {
		f, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer f.Close()
		in, name = f, o.file
	}
	r, err := capture.NewReader(in)
	if err != nil {
		return explain(name, err)
	}
	var events []*decode.Event
	d := decode.New(func(e *decode.Event) { events = append(events, e) })
	var p decode.Packet
	for ctx.Err() == nil && !out.enough() {
		err := r.Next(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return explain(name, err)
		}
		d.Packet(&p)
		if err := out.packet(&p, events); err != nil {
			return err
		}
		clear(events)
		events = events[:0]
		if o.file == standard { // another program may still be capturing
			if err := out.flush(); err != nil {
				return err
			}
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	if r.Skipped > 0 {
		printable.Fprintf(o.IO.ErrOut, "smcr: %d packets of an unknown link type were not decoded\n", r.Skipped)
	}
	if out.shown == 0 {
		printable.Fprintf(o.IO.ErrOut, "smcr: no events of the types %s in %d packets of %s\n", strings.Join(o.types, ", "), p.Frame, name)
	}
	return nil
}

// explain gives the errors of a capture file a text that says what to do.
func explain(name string, err error) error {
	switch {
	case errors.Is(err, capture.ErrTruncated):
		return cmdutil.Say(err, "%s ends in the middle of a packet; all packets before it were shown", name)
	case errors.Is(err, capture.ErrFormat):
		text := strings.TrimPrefix(err.Error(), capture.ErrFormat.Error())
		return cmdutil.Say(err, "%s is not a capture file in pcap or pcapng format, or it is damaged%s", name, text)
	}
	return fmt.Errorf("read %s: %w", name, err)
}
