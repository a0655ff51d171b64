// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/sample"

	tea "charm.land/bubbletea/v2"
)

// answerTime is how long the stacks may take for a sample: a sample takes longer than other
// questions where there are very many connections.
const answerTime = 30 * time.Second

// firstInterval is the longest time to the second sample, which has the first rates.
const firstInterval = time.Second

// A sampler makes samples. One goroutine uses it at a time.
type sampler struct {
	reader *sample.Reader
	before *baseline
}

// sample asks the stacks. After an error there is no baseline: the stacks may be others now.
func (s *sampler) sample(ctx context.Context, q Query) (*Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d := newDigest(q, s.before, time.Now())
	s.before = nil
	stacks, err := s.reader.Read(ctx, d)
	if err != nil {
		return nil, err
	}
	var top *Sample
	top, s.before = d.finish(stacks, s.reader.Factory.NetDev)
	return top, nil
}

// The messages of the program.
type (
	// sampled is the result of a sample.
	sampled struct {
		*Sample
		err error
	}
	// due says that the next sample is due. A message of an earlier round does not count.
	due struct{ round int }
)

// A program connects a Model with the terminal. It implements [tea.Model].
type program struct {
	ctx     context.Context
	model   *Model
	sampler *sampler
	asking  bool // a sample is being made
	taken   int  // samples
	round   int  // of due
}

// Init implements [tea.Model].
func (p *program) Init() tea.Cmd { return p.ask() }

// ask makes a sample, if none is being made.
func (p *program) ask() tea.Cmd {
	if p.asking {
		return nil
	}
	p.asking = true
	q := p.model.Query()
	return func() tea.Msg {
		s, err := p.sampler.sample(p.ctx, q)
		return sampled{s, err}
	}
}

// wait returns the command that says when the next sample is due.
func (p *program) wait(d time.Duration) tea.Cmd {
	p.round++
	round := p.round
	return tea.Tick(d, func(time.Time) tea.Msg { return due{round} })
}

// Update implements [tea.Model].
func (p *program) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		p.model.Resize(msg.Width, msg.Height)
	case due:
		if msg.round == p.round && !p.model.Paused() {
			return p, p.ask()
		}
	case sampled:
		p.asking = false
		every := p.model.Interval()
		switch {
		case p.ctx.Err() != nil:
			return p, tea.Quit
		case p.model.Paused(): // the user has paused meanwhile and looks at the rows before
			return p, nil
		case msg.err != nil:
			p.taken = 0
			p.model.Fail(cmdutil.Message(msg.err))
		default:
			if p.taken++; p.taken == 1 {
				every = min(every, firstInterval)
			}
			p.model.Update(msg.Sample)
		}
		return p, p.wait(every)
	case tea.KeyPressMsg:
		return p, p.act(p.model.Key(msg.String(), msg.Text))
	case tea.ResumeMsg:
		return p, p.ask()
	}
	return p, nil
}

// act does what a key asks for.
func (p *program) act(a Action) tea.Cmd {
	switch a {
	case Quit:
		return tea.Quit
	case Suspend:
		return tea.Suspend
	case Redraw:
		return tea.ClearScreen
	case Reset:
		return p.ask()
	case Postpone:
		if !p.asking && !p.model.Paused() {
			return p.wait(p.model.Interval())
		}
	}
	return nil
}

// Control sequences (ECMA-48) of the styles. bubbletea leaves out the colours where the
// terminal has none, and where the user does not want any (NO_COLOR).
var styles = map[Style]string{
	Title: "\x1b[1m", Tabs: "\x1b[1m", Header: "\x1b[7m", Selected: "\x1b[1;36m", Warning: "\x1b[1;31m", Footer: "\x1b[2m",
}

// View implements [tea.Model].
func (p *program) View() tea.View {
	var b strings.Builder
	for i, l := range p.model.Screen() {
		if i > 0 {
			b.WriteByte('\n')
		}
		if style := styles[l.Style]; style != "" {
			b.WriteString(style + l.Text + "\x1b[m")
		} else {
			b.WriteString(l.Text)
		}
	}
	v := tea.NewView(b.String())
	v.AltScreen = true
	return v
}

// run shows the stacks on a terminal until the user quits or ctx ends.
func run(ctx context.Context, r *sample.Reader, interval time.Duration, in io.Reader, out io.Writer) error {
	p := &program{ctx: ctx, model: NewModel(interval), sampler: &sampler{reader: r}}
	_, err := tea.NewProgram(p, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // SIGINT, or the caller is done
	}
	return err
}
