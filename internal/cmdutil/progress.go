// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"smcr/internal/printable"
)

const (
	// progressAfter is how long a command may take before it says what it waits for.
	progressAfter = 2 * time.Second
	// progressEvery is the time between two changes of what it says.
	progressEvery = time.Second
)

// eraseLine is a control sequence of ECMA-48: it clears the line from its beginning on.
const eraseLine = "\r\x1b[K"

// A Progress is a line on standard error that says what a command waits for, if it takes
// longer than two seconds. It is only for a person: without a terminal there is none. The
// methods of a nil Progress do nothing.
type Progress struct {
	w     io.Writer
	begun time.Time
	over  chan struct{}

	mu    sync.Mutex
	text  string
	shown bool
	ended bool
}

// Progress begins to say what the command waits for. Stop must be called before the command
// prints something. It returns nil if standard error is no terminal.
func (s *IOStreams) Progress(text string) *Progress {
	if s == nil || !isTerminal(s.ErrOut) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	s.progress = newProgress(s.ErrOut, text)
	return s.progress
}

// Waiting changes what the command waits for, if it has begun to say so.
func (s *IOStreams) Waiting(text string) { s.progress.Now(text) }

// Printing ends what [IOStreams.Progress] has begun, because the command prints something.
func (s *IOStreams) Printing() { s.progress.Stop() }

func newProgress(w io.Writer, text string) *Progress {
	p := &Progress{w: w, begun: time.Now(), over: make(chan struct{}), text: text}
	go p.run()
	return p
}

func (p *Progress) run() {
	timer := time.NewTimer(progressAfter)
	defer timer.Stop()
	for {
		select {
		case <-p.over:
			return
		case <-timer.C:
			p.show()
			timer.Reset(progressEvery)
		}
	}
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.shown = true
	// An error means that nobody sees it.
	_, _ = io.WriteString(p.w, eraseLine+fmt.Sprintf("smcr: %s: %d s", printable.Line(p.text), int(time.Since(p.begun)/time.Second)))
}

// Now changes what the command waits for.
func (p *Progress) Now(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.text = text
	p.mu.Unlock()
}

// Stop removes the line. It may be called more than once.
func (p *Progress) Stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	close(p.over)
	if p.shown {
		_, _ = io.WriteString(p.w, eraseLine)
	}
}
