// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"
)

// stall is a log that delays whoever writes a message.
type stall struct {
	slog.Handler
	at   string
	wait time.Duration
}

func (s stall) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s stall) Enabled(context.Context, slog.Level) bool { return true }

func (s stall) Handle(_ context.Context, r slog.Record) error {
	if r.Message == s.at {
		time.Sleep(s.wait)
	}
	return nil
}

// slowDevices has devices whose Close takes a second.
type slowDevices struct {
	rdmaverbs.Provider
	open *atomic.Int32 // devices that are open
}

type slowDevice struct {
	rdmaverbs.Device
	open *atomic.Int32
}

func (p slowDevices) Open(ctx context.Context, name string) (rdmaverbs.Device, error) {
	d, err := p.Provider.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	p.open.Add(1)
	return slowDevice{d, p.open}, nil
}

func (d slowDevice) Close() error {
	// Real time: none. Only tests in bubbles have a slowDevice.
	time.Sleep(time.Second)
	defer d.open.Add(-1)
	return d.Device.Close()
}

// TestCloseDuringEnd closes stacks while another goroutine still releases their
// resources. The end of the bed checks that everything is released.
func TestCloseDuringEnd(t *testing.T) {
	t.Run("link group", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			slow := func(c *Config) {
				c.Log = slog.New(stall{slog.DiscardHandler, "link group ended", time.Second})
			}
			b := newBed(t, bedConfig{client: slow, server: slow})
			c, s := b.connect()
			b.exchange(c, s, pattern(1, 100<<10))
			b.w.SetLAN("lan", false)
			_, _ = c.Write([]byte("lost"))
			_, _ = s.Write([]byte("lost"))
			for _, x := range []*Conn{c, s} {
				if err := b.ended(x); err == nil {
					t.Error("connection ended in order")
				}
			}
			synctest.Wait()
			for _, x := range []*Stack{b.client, b.server} {
				if n := len(groups(x)); n != 0 {
					t.Errorf("%s: %d link groups live on", x.cfg.Hostname, n)
				}
				b.closeStack(x)
			}
			b.noObjects()
		})
	})
	t.Run("device", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			var open atomic.Int32
			b := newBed(t, bedConfig{client: func(c *Config) { c.Providers[0] = slowDevices{c.Providers[0], &open} }})
			b.connect()
			b.ch.Remove("eth0")
			time.Sleep(100 * time.Millisecond)
			if n := open.Load(); n != 1 {
				t.Errorf("%d devices are open, want the one that is being closed", n)
			}
			b.closeStack(b.client)
			if n := open.Load(); n != 0 {
				t.Errorf("%d devices are open after Close", n)
			}
			b.closeStack(b.server)
			b.noObjects()
		})
	})
}

// TestCloseDuringReadFrom: Close does not wait for the reader of a program. When the
// reader returns, the send buffer is unmapped.
func TestCloseDuringReadFrom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, _ := b.connect()
		r, w := io.Pipe()
		errs := make(chan error, 1)
		go func() {
			_, err := c.ReadFrom(r)
			errs <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := b.client.Close(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("Close took %v", d)
		}
		if b.client.driver.MemoryInUse() == 0 {
			t.Error("the send buffer was given back in use")
		}
		if _, err := w.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; err == nil {
			t.Error("ReadFrom on a closed stack succeeds")
		}
		if n := len(b.client.driver.MemoryKept()); n != 0 {
			t.Errorf("%d buffers stay mapped", n)
		}
	})
}
