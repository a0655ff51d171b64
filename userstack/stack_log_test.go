// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// warnings is a log handler that keeps warnings and errors.
type warnings struct {
	who  string
	mu   sync.Mutex
	list []string
}

func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler           { return w }
func (w *warnings) WithGroup(string) slog.Handler                { return w }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	line := fmt.Sprintf("%s: %s %s", w.who, r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, line)
	return nil
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// TestOrderlyEndIsQuiet: an orderly end of connections, idle link groups and stacks
// causes no warning. The loss of a link does.
func TestOrderlyEndIsQuiet(t *testing.T) {
	for _, tt := range []struct {
		name   string
		end    func(b *bed, c, s *Conn)
		faulty bool
	}{
		{"connection", func(b *bed, c, s *Conn) { b.finish(c, s) }, false},
		{"reset", func(b *bed, c, s *Conn) { c.Abort(); b.ended(c); b.ended(s) }, false},
		{"idle", func(b *bed, c, s *Conn) { b.finish(c, s); time.Sleep(20 * time.Minute) }, false},
		{"client's stack", func(b *bed, _, _ *Conn) { b.client.Close() }, false},
		{"server's stack", func(b *bed, _, _ *Conn) { b.server.Close() }, false},
		{"client's stack without connections", func(b *bed, c, s *Conn) { b.finish(c, s); b.client.Close() }, false},
		{"server's stack without connections", func(b *bed, c, s *Conn) { b.finish(c, s); b.server.Close() }, false},
		{"both stacks", func(b *bed, _, _ *Conn) {
			var wg sync.WaitGroup
			wg.Go(func() { b.client.Close() })
			wg.Go(func() { b.server.Close() })
			wg.Wait()
		}, false},
		{"LAN is down", func(b *bed, c, s *Conn) {
			b.w.SetLAN("lan", false)
			_, _ = c.Write([]byte("x"))
			b.ended(c)
			b.ended(s)
		}, true},
	} {
		for _, devices := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d links", tt.name, devices), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					cl, sv := &warnings{who: "client"}, &warnings{who: "server"}
					b := newBed(t, bedConfig{
						devices: devices,
						client:  func(c *Config) { c.Log = slog.New(cl) },
						server:  func(c *Config) { c.Log = slog.New(sv) },
					})
					c, s := b.connect()
					b.exchange(c, s, pattern(1, 300_000))
					b.exchange(s, c, pattern(2, 300_000))
					time.Sleep(time.Second)
					tt.end(b, c, s)
					time.Sleep(5 * time.Second)
					got := append(cl.take(), sv.take()...)
					if tt.faulty != (len(got) > 0) {
						t.Errorf("warnings: %q", got)
					}
				})
			})
		}
	}
}
